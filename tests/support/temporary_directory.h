// A directory for the files of one test, gone when the test is over.
// defines: TemporaryDirectory
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "common/core/error.h"

namespace escalera {

/// A new, empty directory under the system's place for temporary files, removed with all it holds by the
/// destructor.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    path_ = (std::filesystem::temp_directory_path() / "escalera_test_XXXXXX").string();
    require(::mkdtemp(path_.data()) != nullptr, "cannot make {}", path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// The path of `name` in the directory, whether or not it exists.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Writes a file, byte for byte, and returns its path.
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(*this / name, std::ios::binary) << contents;
    return *this / name;
  }
  /// Reads a file, byte for byte.
  std::string read(const std::string& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Number of entries.
  std::ptrdiff_t count() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator{});
  }

 private:
  std::string path_;
};

/// The message of the `E` that `body` throws; "" if it throws nothing. Other exceptions pass through.
template <class E = Error, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace escalera
