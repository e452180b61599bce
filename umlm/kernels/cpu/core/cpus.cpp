#include "core/cpus.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace umlm {
namespace {

int affinity_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return CPU_COUNT(&set);
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The quota in one folder in processors, infinity without one. A v2 file holds "QUOTA PERIOD" or "max PERIOD".
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::ifstream(folder + "/cpu.max") >> quota >> period) {
    return quota > 0 && period > 0 ? quota / period : INFINITY;
  }
  if (std::ifstream(folder + "/cpu.cfs_quota_us") >> quota && std::ifstream(folder + "/cpu.cfs_period_us") >> period) {
    return quota > 0 && period > 0 ? quota / period : INFINITY;
  }
  return INFINITY;
}

// The least quota of a group and the groups above it, up to `mount`. In a container `group` may be a path of the
// host that is not there: then only the groups that are there count.
double least_quota(const std::string& mount, std::string group) {
  double least = quota_in(mount);
  while (group.size() > 1 && group[0] == '/') {
    least = std::min(least, quota_in(mount + group));
    group.resize(group.rfind('/'));
  }
  return least;
}

bool has_name(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

int quota_cpus(const std::string& self, const std::string& root) {
  double least = INFINITY;
  std::ifstream lines(self);
  // a line is "ID:CONTROLLERS:/GROUP"; v2 has the id 0 and no controllers
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min({least, least_quota(root, group), least_quota(root + "/unified", group)});
    } else if (has_name(controllers, "cpu")) {
      least = std::min({least, least_quota(root + "/cpu", group), least_quota(root + "/" + controllers, group)});
    }
  }
  // the margin keeps 2.0000001 from being 3
  return std::isinf(least) ? 0 : std::max(1, static_cast<int>(std::ceil(least - 1e-3)));
}

int usable_cpus() {
  const int quota = quota_cpus(), cpus = std::max(1, affinity_cpus());
  return quota > 0 ? std::min(quota, cpus) : cpus;
}

}  // namespace umlm
