// LinkMeter: makes a process's use of the pool take as long as it would on the emulated machine.
//
// What it does: the code that moves bytes says so, the meter charges them to every link of the way
// and notes when the last of them would be there. settle() then waits for that moment, which the
// real access, made meanwhile, has brought nearer: only the difference is waited for. A link is one
// number in shared memory, the time until which it is taken; a charge pushes it into the future.
//
// What it knows of order: accesses that are charged without a settle() between them overlap, so
// that their latencies count once and their bytes add up. What follows a word of a peer (saw_word)
// begins after that word could have been read.

#pragma once

#include <array>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/link_clock.hpp"
#include "libfabricshm/shm/link_page.hpp"

namespace fabricshm {

/// Used by one thread at a time. Costs some 20 ns per call: nothing uses one without emulation.
class LinkMeter {
  public:
    /// For rank `rank` of `world` on the link page `page`, whose checked copy is `image`. The
    /// rank's node: the number in FABRIC_EMULATED_NODE, else the ranks are dealt to the nodes in
    /// blocks. `pool`: the page of the same machine on which the ranks of all arenas charge their
    /// accesses besides their own; nullptr: there is none. `salt` distinguishes the ranks of one
    /// arena from those of another there.
    LinkMeter(std::byte* page, const LinkImage& image, int rank, int world, LinkClock& clock,
              std::byte* pool = nullptr, std::uint32_t salt = 0) noexcept;

    /// Of a machine of `nodes`.
    static int node_of(int rank, int world, int nodes) noexcept;

    /// An operation starts here: time that passed before was not spent on the pool.
    void begin() noexcept;

    /// `bytes` are being read from the pool, or are about to be.
    void read(Bytes bytes) noexcept { book(bytes, true); }

    /// `bytes` have been written to the pool, at the earliest since the last call of this meter.
    void wrote(Bytes bytes) noexcept { book(bytes, false); }

    /// Before a load of a word of a peer: waits half of the way there and back, so that the load
    /// comes at the moment at which the memory would answer it. The other half is over before
    /// anything else begins. Polling thus has the period and the delay that it would have.
    void look(Bytes bytes) noexcept;

    /// Before a word is raised for others: waits until all that was charged would be done, and as
    /// long as the store of the word itself takes, if nothing was written before it.
    void signal() noexcept;

    /// Waits until all that was charged would be done: at the end of an operation.
    void finish() noexcept;

    const LinkImage& image() const noexcept { return image_; }
    int node() const noexcept { return node_; }

  private:
    struct Rest {  // fractions of a nanosecond that a channel is still owed
        double read = 0;
        double write = 0;
    };

    std::uint64_t now() noexcept;
    void wait(std::uint64_t until) noexcept;
    void book(Bytes bytes, bool is_read) noexcept;
    std::uint64_t book_on(int channel, double bytes, bool is_read, std::uint64_t from) noexcept;
    std::uint64_t tail() noexcept;
    void be_busy(std::uint64_t until) noexcept;
    double knee_factor(const LinkChannel& channel, std::uint64_t now) const noexcept;

    LinkPage& page_;
    LinkPage* const pool_;  // nullptr: none
    const LinkImage image_;
    const int node_;
    const int slot_;
    const LinkRoute& route_;  // of image_
    LinkClock& clock_;
    const std::uint64_t cost_;  // of reading it
    // All in the meter's own time, which is `behind_` behind the clock's.
    std::uint64_t behind_ = 0;
    std::uint64_t last_ = 0;   // when the meter was last called
    std::uint64_t ready_ = 0;  // when the next access can begin
    std::uint64_t due_ = 0;    // when all that was charged is done
    std::uint64_t random_;     // of tail()
    bool signalled_ = false;   // and nothing since
    bool wrote_ = false;       // since the last signal(): its latency is in due_ already
    std::array<Rest, kLinkChannels> rest_{};
};

}  // namespace fabricshm
