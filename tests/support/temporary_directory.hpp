// A directory of the test's own, removed with all that is in it.

#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace test_support {

class TemporaryDirectory {
  public:
    /// `where` has room for it: "/tmp", or "/dev/shm" for a test that must not wait for a disk.
    explicit TemporaryDirectory(const char* where = "/tmp") {
        std::string name = std::string(where) + "/fabric-test-XXXXXX";
        if (::mkdtemp(name.data()) != nullptr) path_ = name;
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    const std::string& path() const noexcept { return path_; }
    std::string file(const char* name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

}  // namespace test_support
