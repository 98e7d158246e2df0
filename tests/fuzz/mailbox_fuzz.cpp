// The channel of a mailbox, whose every word a peer can write: its lines, what they say of messages
// and of bytes in the arena, and how far the peer says that it has read. What a rank does with any
// words ends by its deadline, in an error or in bytes of the arena, and stores nothing beyond its
// buffers.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <thread>

#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using test_support::TestArena;

namespace {

constexpr Bytes kPerRank = 2 * kMiB;
constexpr Bytes kMaxMessage = 160 * kKiB;  // sent in place or in several pieces
constexpr Bytes kGuard = 4096;
constexpr auto kTimeout = std::chrono::microseconds(100);
constexpr unsigned kActions = 24;

/// Rank 0 with its group, and rank 1, in whose name the input writes.
class Pair {
  public:
    Pair() : arena_(2, kPerRank, {}) {
        const TimePoint deadline = Clock::now() + std::chrono::minutes(1);
        std::thread other([&] { peer_ = attach(1, deadline); });
        rank_ = attach(0, deadline);
        other.join();
        FUZZ_REQUIRE(rank_ != nullptr && peer_ != nullptr);
    }
    // Neither waits for the other's receives: both are taken for dead.
    ~Pair() {
        arena_.mark_dead(1);
        rank_.reset();
        arena_.mark_dead(0);
        peer_.reset();
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    Group& rank() noexcept { return *rank_; }
    std::byte* memory() const noexcept { return arena_.base() + layout_.total; }

    /// Line `number` of the channel from rank 1 to rank 0.
    ChannelLine& line(std::uint64_t number) const noexcept {
        auto* lines = reinterpret_cast<ChannelLine*>(arena_.block() + layout_.channels);
        return lines[2 * layout_.channel_lines + number % layout_.channel_lines];
    }
    /// How far rank 1 says that it has read of what rank 0 sent.
    ChannelTaken& taken() const noexcept {
        auto* all = reinterpret_cast<ChannelTaken*>(arena_.block() + layout_.taken);
        return all[2];
    }

  private:
    std::unique_ptr<Group> attach(int rank, TimePoint deadline) {
        auto group = Group::attach(arena_.place(rank), deadline);
        return group.ok() ? std::move(group).value() : nullptr;
    }

    TestArena arena_;
    GroupLayout layout_ = GroupLayout::of(2);
    std::unique_ptr<Group> rank_;
    std::unique_ptr<Group> peer_;
};

Call message(Kind kind, int tag, Bytes bytes) {
    Call call;
    call.kind = kind;
    call.dtype = kernels::DType::kU8;
    call.count = bytes;
    call.peer = 1;
    call.tag = tag;
    call.deadline = Clock::now() + kTimeout;
    return call;
}

/// Of any number of bytes as often as of few.
Bytes size_of(fuzz::Input& input) {
    return (input.number<std::uint32_t>() >> input.below(32)) % (kMaxMessage + 1);
}

void receive(Pair& pair, fuzz::Input& input) {
    static std::array<std::byte, kMaxMessage + 2 * kGuard> buffer;
    const Bytes bytes = size_of(input);
    const auto guard = static_cast<std::byte>(0xa5);
    std::fill_n(buffer.data(), kGuard, guard);
    std::fill_n(buffer.data() + kGuard + bytes, kGuard, guard);
    Call call = message(Kind::kRecv, static_cast<int>(input.below(3)), bytes);
    call.output = buffer.data() + kGuard;
    (void)pair.rank().run(call);
    const auto intact = [&](const std::byte* from) {
        return std::all_of(from, from + kGuard, [&](std::byte byte) { return byte == guard; });
    };
    FUZZ_REQUIRE(intact(buffer.data()) && intact(buffer.data() + kGuard + bytes));
}

void send(Pair& pair, fuzz::Input& input) {
    static const std::array<std::byte, kMaxMessage> outside{};
    const Bytes bytes = size_of(input);
    Call call = message(Kind::kSend, static_cast<int>(input.below(3)), bytes);
    call.input = input.below(2) == 0 ? outside.data() : pair.memory();
    (void)pair.rank().run(call);
}

/// A line as a sender of ours writes it, but for what it says.
void write_message(Pair& pair, fuzz::Input& input, std::uint64_t& next) {
    ChannelLine& line = pair.line(next);
    MessageWhat what{};
    what.tag = static_cast<std::int32_t>(input.below(3));
    what.bytes = static_cast<std::uint16_t>(input.number<std::uint16_t>() >> input.below(16));
    what.kind = static_cast<MessageKind>(input.below(9));
    what.first = static_cast<std::uint8_t>(input.below(4) != 0);
    MessagePiece piece{};
    piece.offset = input.number<std::uint64_t>() >> input.below(64);
    piece.bytes = size_of(input);
    piece.total =
        input.below(2) == 0 ? piece.bytes : input.number<std::uint64_t>() >> input.below(64);
    std::memcpy(line.data, &piece, sizeof piece);
    line.what.store(std::bit_cast<std::uint64_t>(what), std::memory_order_relaxed);
    line.number.store(next + 1, std::memory_order_release);
    next += 1 + input.below(3);
}

void write_word(Pair& pair, fuzz::Input& input) {
    const auto value = input.number<std::uint64_t>() >> input.below(64);
    if (input.below(8) == 0) return pair.taken().taken.store(value);
    ChannelLine& line = pair.line(input.number<std::uint8_t>());
    const std::size_t word = input.number<std::uint8_t>() % (sizeof line / sizeof value);
    std::memcpy(reinterpret_cast<std::byte*>(&line) + word * sizeof value, &value, sizeof value);
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    Pair pair;
    std::uint64_t next = 0;
    for (unsigned i = 0; i < kActions && !input.empty(); ++i) {
        switch (input.below(6)) {
            case 0:
            case 1:
                write_message(pair, input, next);
                break;
            case 2:
                write_word(pair, input);
                break;
            case 3:
                send(pair, input);
                break;
            default:
                receive(pair, input);
        }
    }
}

// What write_message() and receive() read.
void append_message(fuzz::Buffer& seed, MessageKind kind, std::uint64_t offset,
                    std::uint32_t bytes) {
    fuzz::append(seed, std::uint8_t{0});
    fuzz::append(seed, std::uint8_t{1});  // tag
    fuzz::append(seed, static_cast<std::uint16_t>(bytes));
    fuzz::append(seed, std::uint8_t{0});
    fuzz::append(seed, static_cast<std::uint8_t>(kind));
    fuzz::append(seed, std::uint8_t{1});  // a message starts here
    fuzz::append(seed, offset);
    fuzz::append(seed, std::uint8_t{0});
    fuzz::append(seed, bytes);
    fuzz::append(seed, std::uint8_t{0});
    fuzz::append(seed, std::uint8_t{0});  // in one piece
    fuzz::append(seed, std::uint8_t{0});  // the next line
}

void append_receive(fuzz::Buffer& seed, std::uint32_t bytes) {
    fuzz::append(seed, std::uint8_t{4});
    fuzz::append(seed, bytes);
    fuzz::append(seed, std::uint8_t{0});
    fuzz::append(seed, std::uint8_t{1});  // tag
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> made;
    for (const MessageKind kind :
         {MessageKind::kInline, MessageKind::kPiece, MessageKind::kWithdrawn, MessageKind::kOffered,
          MessageKind::kMoved}) {
        for (const std::uint32_t bytes : {24u, 4096u, 100'000u}) {
            fuzz::Buffer seed;
            append_message(seed, kind, kMiB, bytes);
            append_receive(seed, bytes);
            append_receive(seed, 8);
            made.push_back(seed);
        }
    }
    return made;
}

const fuzz::Registered kTarget({"mailbox", run, seeds});

}  // namespace
