#include "emu/litmus/litmus.hpp"

#include <atomic>
#include <thread>

namespace emu {

namespace {

using fabricshm::Clock;
using fabricshm::kCacheLine;
using fabricshm::TimePoint;
using fabricshm::TouchPoint;
using fabricshm::Visibility;

constexpr int kWords = 128;  // sixteen lines of data: more than are written back in one go

// What one side writes; every word that is polled by itself has a line of its own.
struct Side {
    alignas(kCacheLine) std::atomic<std::uint64_t> flag;
    alignas(kCacheLine) std::atomic<std::uint64_t> taken;
    alignas(kCacheLine) std::atomic<std::uint64_t> x;
    alignas(kCacheLine) std::atomic<std::uint64_t> report;
    alignas(kCacheLine) std::atomic<std::uint64_t> data[kWords];
};
static_assert(2 * sizeof(Side) <= kLitmusBytes);

// One side of the game: the other one is played elsewhere, over the same bytes.
class Player {
  public:
    Player(int side, std::byte* base, const Visibility& view, const LitmusOptions& options)
        : own_(reinterpret_cast<Side*>(base)[side]),
          other_(reinterpret_cast<Side*>(base)[1 - side]),
          view_(view),
          options_(options) {}

    // Both have to begin at the same number, above everything that an earlier run left.
    // Numbers only rise, so a run that follows another on the same memory has to begin above it;
    // zeros are not needed.
    bool agree() {
        view_.acquire(TouchPoint::kSentRead, &own_.flag, kCacheLine);
        const std::uint64_t mine = own_.flag.load(std::memory_order_acquire);
        if (!hear(mine + 1)) return false;
        const std::uint64_t theirs = other_.report.load(std::memory_order_acquire);
        number_ = std::max(mine + 1, theirs) + 1;
        raise(own_.taken, number_);
        return await(other_.taken, number_);
    }

    bool send() {
        for (std::uint64_t round = 0; round < options_.rounds; ++round) {
            // One line and many in turn: what is lost with many may go well with one.
            const int words = round % 2 == 0 ? 8 : kWords;
            ++number_;
            // Relaxed: the publication and the flag after it are what is tested.
            for (int i = 0; i < words; ++i) own_.data[i].store(number_, std::memory_order_relaxed);
            view_.publish(TouchPoint::kMessage, own_.data, static_cast<Bytes>(words) * 8);
            raise(own_.flag, number_);
            // A round ends when the other side has read: neither runs ahead.
            if (!await(other_.taken, number_)) return false;
            ++seen_.rounds;
        }
        return true;
    }

    bool receive() {
        for (std::uint64_t round = 0; round < options_.rounds; ++round) {
            const int words = round % 2 == 0 ? 8 : kWords;
            ++number_;
            if (!await(other_.flag, number_)) return false;
            view_.acquire(TouchPoint::kMessageRead, other_.data, static_cast<Bytes>(words) * 8);
            bool stale = false;
            // Relaxed, behind the acquire that is tested; every word, since one old line is enough.
            for (int i = 0; i < words; ++i) {
                stale = stale || other_.data[i].load(std::memory_order_relaxed) != number_;
            }
            seen_.stale += stale ? 1 : 0;
            raise(own_.taken, number_);
            ++seen_.rounds;
        }
        return true;
    }

    // Each stores its word and loads the other's. That both see the old one would mean that neither
    // store was out when it was published.
    bool buffer_stores() {
        for (std::uint64_t round = 0; round < options_.rounds; ++round) {
            ++number_;
            // Sequentially consistent: what the engines use on coherent memory for this shape.
            own_.x.store(number_, std::memory_order_seq_cst);
            view_.publish(TouchPoint::kMessage, &own_.x, kCacheLine);
            view_.acquire(TouchPoint::kMessageRead, &other_.x, kCacheLine);
            const bool old = other_.x.load(std::memory_order_seq_cst) < number_;
            raise(own_.report, 2 * number_ + (old ? 1 : 0));
            if (!await(other_.report, 2 * number_)) return false;
            const bool theirs_old = (other_.report.load(std::memory_order_acquire) & 1) != 0;
            // The other reads this report before it goes on; wait until it has.
            raise(own_.taken, number_);
            if (!await(other_.taken, number_)) return false;
            seen_.both_old += old && theirs_old ? 1 : 0;
            ++seen_.rounds;
        }
        raise(own_.flag, 2 * number_ + 1);  // above all reports: the next run begins there
        return true;
    }

    LitmusSightings play(int side) {
        // Both directions: the sides may be different machines, and a profile has to hold on both.
        const bool whole = agree() && (side == 0 ? send() : receive()) &&
                           (side == 0 ? receive() : send()) && buffer_stores();
        // A side that never answered proves nothing about the profile, and refutes it all the same:
        // what it published did not arrive.
        seen_.silent = !whole;
        return seen_;
    }

  private:
    // Release and publication: on coherent memory the first is enough, elsewhere the second is what
    // counts.
    void raise(std::atomic<std::uint64_t>& word, std::uint64_t value) {
        word.store(value, std::memory_order_release);
        view_.publish(TouchPoint::kSent, &word, kCacheLine);
    }

    bool await(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
        // Set again for each sign: many rounds may take long, one answer may not.
        const TimePoint limit = Clock::now() + options_.timeout;
        for (std::uint64_t look = 1;; ++look) {
            // Before every poll, or a cached copy would be polled for ever.
            view_.acquire(TouchPoint::kSentRead, &word, kCacheLine);
            if (word.load(std::memory_order_acquire) >= value) return true;
            if (look % 64 != 0) continue;
            if (Clock::now() >= limit) return false;
            std::this_thread::yield();
        }
    }

    // Said again until the other side is heard, and once more then: the one that clears the memory
    // may do so after this one has spoken, and between its word and its look. A side speaks after
    // it has cleared, so the word that follows on hearing it stays.
    bool hear(std::uint64_t report) {
        const TimePoint limit = Clock::now() + options_.timeout;
        for (bool heard = false;;) {
            raise(own_.report, report);
            if (heard) return true;
            view_.acquire(TouchPoint::kSentRead, &other_.report, kCacheLine);
            heard = other_.report.load(std::memory_order_acquire) >= 1;
            if (heard) continue;
            if (Clock::now() >= limit) return false;
            std::this_thread::yield();
        }
    }

    Side& own_;
    Side& other_;
    const Visibility view_;
    const LitmusOptions options_;
    std::uint64_t number_ = 0;
    LitmusSightings seen_;
};

}  // namespace

LitmusSightings run_litmus(int side, std::byte* base, const Visibility& view,
                           const LitmusOptions& options) {
    return Player(side, base, view, options).play(side);
}

}  // namespace emu
