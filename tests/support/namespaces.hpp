// Two network namespaces with a cable between them: two hosts, as far as the network knows. Needs
// root and `ip`; gone with the object.

#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace test_support {

class Cable {
  public:
    static constexpr const char* kNetwork = "10.99.83.0/24";

    Cable() : tag_(std::to_string(::getpid())) {
        ok_ = ::geteuid() == 0 && run("netns add " + name(0)) && run("netns add " + name(1)) &&
              run("link add v0 netns " + name(0) + " type veth peer name v1 netns " + name(1));
        for (int side = 0; ok_ && side < 2; ++side) {
            const std::string in = "-n " + name(side);
            ok_ = run(in + " addr add " + address(side) + "/24 dev v" + std::to_string(side)) &&
                  run(in + " link set lo up") && set(side, true);
        }
    }
    ~Cable() {
        run("netns del " + name(0));
        run("netns del " + name(1));
    }
    Cable(const Cable&) = delete;
    Cable& operator=(const Cable&) = delete;

    /// False: this machine or user can't have namespaces.
    bool ok() const noexcept { return ok_; }
    static std::string address(int side) { return "10.99.83." + std::to_string(side + 1); }

    /// Moves the calling thread, best a child before it opens anything, to one of its ends.
    bool enter(int side) const {
        const int file = ::open(("/run/netns/" + name(side)).c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) return false;
        const bool in = ::setns(file, CLONE_NEWNET) == 0;
        ::close(file);
        return in;
    }

    /// Cuts the cable, and mends it.
    bool cut() const { return set(1, false); }
    bool mend() const { return set(1, true); }

  private:
    std::string name(int side) const { return "fabric-" + tag_ + (side == 0 ? "a" : "b"); }
    bool set(int side, bool up) const {
        const std::string device = "v" + std::to_string(side);
        return run("-n " + name(side) + " link set " + device + (up ? " up" : " down"));
    }
    static bool run(const std::string& arguments) {
        return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
    }

    std::string tag_;
    bool ok_ = false;
};

}  // namespace test_support
