// A small disk of a test's own, to fill: tmpfs, in mounts that this process alone sees.

#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "libfabricshm/os/fd.hpp"
#include "tests/support/skip.hpp"

namespace test_support {

inline void write_own(const char* path, const std::string& text) {
    std::ofstream(path) << text;
}

// Mounts of this process's own. As root at once, else as root of a user namespace.
inline bool has_own_mounts() {
    static const bool there = [] {
        const std::string user = std::to_string(::getuid());
        const std::string group = std::to_string(::getgid());
        if (::getuid() == 0) {
            if (::unshare(CLONE_NEWNS) != 0) return false;
        } else {
            if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
            write_own("/proc/self/setgroups", "deny");
            write_own("/proc/self/uid_map", user + " " + user + " 1");
            write_own("/proc/self/gid_map", group + " " + group + " 1");
        }
        return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    }();
    return there;
}

/// A disk of so many MiB at `path`, gone with this.
class SmallDisk {
  public:
    explicit SmallDisk(std::string path, int mib = 8)
        : path_(std::move(path)), size_("size=" + std::to_string(mib) + "m") {
        ::mkdir(path_.c_str(), 0700);
        is_there = has_own_mounts() &&
                   ::mount("none", path_.c_str(), "tmpfs", 0, (size_ + ",mode=0700").c_str()) == 0;
        if (!is_there) skip("no mounts of our own");
    }
    ~SmallDisk() {
        if (is_there) ::umount2(path_.c_str(), MNT_DETACH);
    }
    /// Also what has become free since the last time.
    void fill() const {
        const fabricshm::Fd file(
            ::open((path_ + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        char block[4096] = {};
        while (::write(file.get(), block, sizeof block) > 0) {
        }
    }
    void make_space() const { ::unlink((path_ + "/filler").c_str()); }
    bool remount(unsigned long flags) const {
        return ::mount("none", path_.c_str(), nullptr, MS_REMOUNT | flags, size_.c_str()) == 0;
    }
    bool is_there = false;

  private:
    std::string path_;
    std::string size_;
};

}  // namespace test_support
