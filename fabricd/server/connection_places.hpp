// ConnectionPlaces: how many connections each user holds, and which may have one more.

#pragma once

#include <cstdint>
#include <map>

namespace fabricd {

/// A connection costs descriptors before it is a session, so places are counted apart from them.
struct PlaceLimits {
    int all = 4096;
    int per_user = 1024;
    int half_open_per_user = 256;  // connected, and said no hello yet
    int reserved = 16;             // beyond `all`: for root and the daemon's own user
};

/// Plain counting, by user. Not thread-safe.
class ConnectionPlaces {
  public:
    /// `own` is the daemon's user, with some places kept for it, as for root: a user that fills
    /// the others must not keep those out that can do something about it.
    ConnectionPlaces(const PlaceLimits& limits, std::uint32_t own) : limits_(limits), own_(own) {}

    bool has_room(std::uint32_t uid) const;

    /// One more connection, which has not said hello yet.
    void take(std::uint32_t uid);
    /// It has said hello.
    void greeted(std::uint32_t uid);
    /// It is gone; `was_greeted` when greeted() was called for it.
    void give_back(std::uint32_t uid, bool was_greeted);

  private:
    struct Held {
        int all = 0;
        int half_open = 0;
    };
    PlaceLimits limits_;
    std::uint32_t own_;
    int all_ = 0;
    std::map<std::uint32_t, Held> by_user_;  // those with at least one
};

}  // namespace fabricd
