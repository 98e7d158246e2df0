// HostTree: a folder that stands in for / with the few files of /sys and /proc that a test needs.

#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "libfabricshm/machine/host_files.hpp"

/// Made empty, removed with all it holds.
class HostTree {
  public:
    HostTree() { REQUIRE(::mkdtemp(root_) != nullptr); }
    ~HostTree() { std::filesystem::remove_all(root_); }
    HostTree(const HostTree&) = delete;
    HostTree& operator=(const HostTree&) = delete;

    /// Writes a file and the folders above it. `path` has no leading slash.
    void write(const std::string& path, const std::string& text) {
        const auto file = std::filesystem::path(root_) / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << '\n';
    }

    void link(const std::string& path, const std::string& target) {
        const auto file = std::filesystem::path(root_) / path;
        std::filesystem::create_directories(file.parent_path());
        std::filesystem::create_symlink(target, file);
    }

    fabricshm::HostFiles files() const { return fabricshm::HostFiles(root_); }
    std::string path(const std::string& below) const { return std::string(root_) + "/" + below; }

  private:
    char root_[32] = "/tmp/fabric-host-XXXXXX";
};
