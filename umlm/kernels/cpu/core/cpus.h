// How many processors this process may use.
#pragma once

#include <string>

namespace umlm {

inline constexpr const char* kOwnGroups = "/proc/self/cgroup";
inline constexpr const char* kGroupRoot = "/sys/fs/cgroup";

// Processors that the quotas of the process's control groups (v1 or v2) and of all groups above are worth, rounded
// up; 0 without a quota. self  the list of groups; root  where their files are.
int quota_cpus(const std::string& self = kOwnGroups, const std::string& root = kGroupRoot);

// Processors that affinity and quotas leave, at least 1.
int usable_cpus();

}  // namespace umlm
