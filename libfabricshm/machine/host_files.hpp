// Reading /sys and /proc below a root, so that tests feed trees of machines that are not here.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fabricshm {

/// Small text files of the kernel. `root` is "" on the running machine; in a test it is a folder
/// that holds "sys/..." and "proc/...". Thread-safe.
class HostFiles {
  public:
    HostFiles() = default;
    explicit HostFiles(std::string root) : root_(std::move(root)) {}

    /// The file's text without trailing white space; nothing when it cannot be read.
    std::optional<std::string> text(const std::string& path) const;

    /// A whole file that holds one number, decimal or 0x-hexadecimal.
    std::optional<std::uint64_t> number(const std::string& path) const;

    /// The names in a folder, sorted; none when there is no such folder.
    std::vector<std::string> names(const std::string& folder) const;

    /// The last name of what a symbolic link leads to: "kmem" for ".../driver".
    std::optional<std::string> link_name(const std::string& path) const;

    bool exists(const std::string& path) const;

    const std::string& root() const noexcept { return root_; }

  private:
    std::string root_;
};

}  // namespace fabricshm
