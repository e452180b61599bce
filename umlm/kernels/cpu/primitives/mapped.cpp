// Arrays over the bytes of files: no copy, and one copy in memory for all processes that map the file.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "primitives/arrays.h"
#include "primitives/bind.h"

namespace umlm {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path) {
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw nanobind::python_error();
}

// A file, open as long as this lives.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number_ < 0 || fstat(number_, &status_) != 0) fail(path);
  }
  ~OpenFile() { close(number_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int number() const { return number_; }
  const struct stat& status() const { return status_; }
  int64_t size() const { return status_.st_size; }

 private:
  int number_;
  struct stat status_;
};

// A whole file in memory. Pages are private and writable: whoever writes through a pointer to them, such as a numpy view
// of an array, gets a page of its own, and the file stays as it is.
class Mapping {
 public:
  Mapping(const OpenFile& file, const std::filesystem::path& path) : size_(file.size()) {
    void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.number(), 0);
    if (data == MAP_FAILED) fail(path);
    data_ = static_cast<uint8_t*>(data);
  }
  ~Mapping() { munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_;
  size_t size_;
};

// The mapping of a file, shared while any array over it lives. A file that was replaced or written gets a new one.
std::shared_ptr<Mapping> mapping_of(const OpenFile& file, const std::filesystem::path& path) {
  using Key = std::tuple<dev_t, ino_t, off_t, time_t, long>;
  static std::mutex mutex;
  static auto& known = *new std::map<Key, std::weak_ptr<Mapping>>;  // arrays may outlive static objects
  const struct stat& s = file.status();
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Mapping>& found = known[{s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec}];
  std::shared_ptr<Mapping> mapping = found.lock();
  if (mapping == nullptr) {
    mapping = std::make_shared<Mapping>(file, path);
    found = mapping;
  }
  return mapping;
}

int64_t checked_bytes(const std::vector<int>& shape, mx::Dtype dtype) {
  int64_t bytes = mx::size_of(dtype);
  for (int size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, int64_t(size), &bytes)) {
      throw std::invalid_argument("mapped: no array has such a shape");
    }
  }
  return bytes;
}

mx::array copied(const uint8_t* from, int64_t bytes, mx::Shape shape, mx::Dtype dtype) {
  mx::allocator::Data data = mx::allocator::malloc(bytes);
  if (bytes > 0) std::memcpy(data.buffer().raw_ptr(), from, bytes);
  return mx::array(std::move(data), std::move(shape), dtype);
}

// MLX writes results into inputs that nobody else needs, but only into memory that its allocator gave, so never here.
mx::array mapped(const std::filesystem::path& path, int64_t offset, const std::vector<int>& sizes, mx::Dtype dtype) {
  const OpenFile file(path);
  const int64_t bytes = checked_bytes(sizes, dtype);
  mx::Shape shape(sizes.begin(), sizes.end());
  if (offset < 0 || offset > file.size() || bytes > file.size() - offset) {
    throw std::invalid_argument(path.string() + ": " + std::to_string(bytes) + " bytes wanted from byte " +
                                std::to_string(offset) + " on, the file has " + std::to_string(file.size()) +
                                "; was it cut or replaced? download it again");
  }
  if (bytes == 0) return copied(nullptr, 0, std::move(shape), dtype);
  const std::shared_ptr<Mapping> mapping = mapping_of(file, path);
  uint8_t* at = mapping->data() + offset;
  if (!buffers_are_plain() || offset < kSizeBytes || offset % mx::size_of(dtype) != 0) {
    return copied(at, bytes, std::move(shape), dtype);
  }
  mx::allocator::Data data(mx::allocator::Buffer(at - kSizeBytes), [mapping](mx::allocator::Buffer) {});
  return mx::array(std::move(data), std::move(shape), dtype);
}

}  // namespace

void bind_mapped(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("mapped", &mapped, "file"_a, "offset"_a, "shape"_a, "dtype"_a,
        "Values of `dtype` from byte `offset` of a file on, as an array over a memory map of the file: nothing is read "
        "before it is used. A place that is not aligned to the dtype is copied. OSError where the file cannot be "
        "mapped, ValueError where it is too short.");
}

}  // namespace umlm
