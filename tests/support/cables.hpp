// Many cables between two network namespaces, each a network of its own: hosts that are cut off
// from each other one by one, thousands of times. Needs root and `ip`; gone with the object.

#pragma once

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace test_support {

class Cables {
  public:
    static constexpr int kMost = 200;

    explicit Cables(int count) : tag_(std::to_string(::getpid())) {
        ok_ = ::geteuid() == 0 && run("netns add " + name(0)) && run("netns add " + name(1));
        std::string links;
        std::string ends[2] = {"link set lo up\n", "link set lo up\n"};
        for (int cable = 0; cable < count; ++cable) {
            links += "link add " + device(cable, 0) + " netns " + name(0) +
                     " type veth peer name " + device(cable, 1) + " netns " + name(1) + "\n";
            for (int side = 0; side < 2; ++side) {
                const std::string end = device(cable, side);
                ends[side] += "addr add " + address(cable, side) + "/24 dev " + end +
                              "\nlink set " + end + " up\n";
            }
        }
        ok_ = ok_ && batch("", links) && batch("-n " + name(0), ends[0]) &&
              batch("-n " + name(1), ends[1]);
    }
    ~Cables() {
        run("netns del " + name(0));
        run("netns del " + name(1));
    }
    Cables(const Cables&) = delete;
    Cables& operator=(const Cables&) = delete;

    /// False: this machine or user can't have namespaces.
    bool ok() const noexcept { return ok_; }
    static std::string address(int cable, int side) {
        return "10.98." + std::to_string(cable) + "." + std::to_string(side + 1);
    }
    static std::string network(int cable) { return "10.98." + std::to_string(cable) + ".0/24"; }
    static std::string device(int cable, int side) {
        return "v" + std::to_string(cable) + (side == 0 ? "a" : "b");
    }

    /// Moves the calling thread, best a child before it opens anything, to one side of all cables.
    bool enter(int side) const {
        const int file = ::open(("/run/netns/" + name(side)).c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) return false;
        const bool in = ::setns(file, CLONE_NEWNET) == 0;
        ::close(file);
        return in;
    }

  private:
    std::string name(int side) const { return "fabric-c" + tag_ + (side == 0 ? "a" : "b"); }
    static bool run(const std::string& arguments) {
        return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
    }
    static bool batch(const std::string& options, const std::string& lines) {
        FILE* pipe = ::popen(("ip " + options + " -batch - 2>/dev/null").c_str(), "w");
        if (pipe == nullptr) return false;
        std::fputs(lines.c_str(), pipe);
        return ::pclose(pipe) == 0;
    }

    std::string tag_;
    bool ok_ = false;
};

/// One end of a cable, in the hands of the thread that was on its side when it was made.
class CableEnd {
  public:
    explicit CableEnd(const std::string& device) : socket_(::socket(AF_INET, SOCK_DGRAM, 0)) {
        std::memcpy(request_.ifr_name, device.c_str(), device.size() + 1);
    }
    ~CableEnd() { ::close(socket_); }
    CableEnd(const CableEnd&) = delete;
    CableEnd& operator=(const CableEnd&) = delete;

    /// From the return on nothing comes through, or everything may.
    bool set(bool up) {
        request_.ifr_flags = static_cast<short>(flags());
        request_.ifr_flags =
            static_cast<short>(up ? request_.ifr_flags | IFF_UP : request_.ifr_flags & ~IFF_UP);
        return ::ioctl(socket_, SIOCSIFFLAGS, &request_) == 0;
    }
    bool is_up() { return (flags() & IFF_UP) != 0; }

  private:
    int flags() { return ::ioctl(socket_, SIOCGIFFLAGS, &request_) == 0 ? request_.ifr_flags : 0; }

    int socket_;
    ifreq request_{};
};

}  // namespace test_support
