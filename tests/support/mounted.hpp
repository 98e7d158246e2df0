// A folder mounted by fabric-mount, for tests; and contents that are derived from a number.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temporary_directory.hpp"

namespace test_support {

/// Whether this process can mount at all. "": it can; else why not.
std::string why_no_mount();

/// fabric-mount --foreground at a place of its own, of a plain folder, or with `from` "" of what
/// the words say. Ended when it goes.
class Mounted {
  public:
    /// Returns when it is mounted or has ended. `words` are added to the command line.
    explicit Mounted(const std::string& from, const std::vector<std::string>& words = {},
                     const std::vector<std::pair<std::string, std::string>>& environment = {});
    ~Mounted();
    Mounted(const Mounted&) = delete;
    Mounted& operator=(const Mounted&) = delete;

    const std::string& path() const noexcept { return path_; }
    bool is_mounted() const;
    pid_t keeper() const noexcept { return keeper_; }
    /// The server that runs now, 0: none just now.
    pid_t server() const;
    bool kill_server() const;
    /// The one that waits for its turn, 0: none just now.
    pid_t standby() const;
    /// SIGTERM to the keeper; its exit code. -1: it did not end within 20 s.
    int end();
    /// SIGKILL to the keeper, when it has ended.
    void kill_keeper();
    /// The same mount point once more.
    void start_again();
    std::string log() const;

  private:
    pid_t child(bool stands_by) const;
    void start();

    TemporaryDirectory folder_;
    std::string path_;
    std::string from_;
    std::vector<std::string> words_;
    std::vector<std::pair<std::string, std::string>> environment_;
    pid_t keeper_ = -1;
};

/// Bytes [from, from + bytes) of the content that belongs to `seed`.
std::string content_of(std::uint64_t seed, std::uint64_t from, std::uint64_t bytes);

void write_file(const std::string& path, const std::string& content);
/// By another name, and then renamed: a reader has one or the other.
void replace_file(const std::string& path, const std::string& content);

}  // namespace test_support
