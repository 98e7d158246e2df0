// Random programs over the public interface: which rank calls what, with which bytes, in which
// order. A program is a pure function of its seed and of ProgramLimits, so that one number replays
// it.
//
// A program is a list of operations (a collective, or one message) and one script per rank. The
// operations of all scripts agree with one order of the whole program, in which each operation can
// complete when those before it have; so no correct library hangs in it. Buffers are places in
// slabs: each rank has one slab in the arena and one in private memory, and all ranks share a third
// one for outputs that they have in common.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oracle {

/// A small generator of our own: the same numbers on each machine and library.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next();
    /// 0 .. limit - 1; limit is at least 1.
    std::uint64_t below(std::uint64_t limit) { return next() % limit; }
    int between(int first, int last) {
        return first + static_cast<int>(below(static_cast<std::uint64_t>(last - first) + 1));
    }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
    template <class T>
    const T& pick(const std::vector<T>& choices) {
        return choices[below(choices.size())];
    }
    template <class T>
    void shuffle(std::vector<T>& items) {
        for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
    }

  private:
    std::uint64_t state_;
};

/// Mixes numbers into one that seems random.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

enum class Slab : std::uint8_t { kNone, kArena, kPrivate, kCommon };

/// Where a buffer lies; kNone is a null pointer.
struct Buffer {
    Slab slab = Slab::kNone;
    std::uint64_t offset = 0;
};

/// What the elements of an input are.
enum class Values : std::uint8_t {
    kSmall,   // small integers: sums and products are exact, in whatever order they are made
    kNormal,  // floats of moderate size: sums round, in the order of ranks
    kBits,    // any bits: NaN, infinities, denormals, integers that wrap
};

/// What one rank gives to an operation.
struct Part {
    Buffer input;
    Buffer output;
};

/// Which ranks read an output that all share, and so when it may be overwritten.
enum class Readers : std::uint8_t { kOne, kAll };

/// A collective, or a message (kind SEND; the receiver's side is derived from it).
struct Operation {
    fabricshm_kind kind = FABRICSHM_BARRIER;
    fabricshm_dtype dtype = FABRICSHM_U8;
    fabricshm_op op = FABRICSHM_SUM;
    fabricshm_algorithm algorithm = FABRICSHM_AUTO;
    fabricshm_trigger trigger = FABRICSHM_ASYNC;
    int root = 0;
    int tag = 0;
    int group = 0;
    std::vector<int> members;  // world ranks, by rank of the group at that time
    std::uint64_t count = 0;   // elements, unless counts or matrix say otherwise
    std::vector<std::uint64_t> counts;
    std::vector<std::vector<std::uint64_t>> matrix;  // ALL_TO_ALL: [from][to]
    Values values = Values::kSmall;
    std::uint64_t data = 0;   // seed of the inputs
    std::vector<Part> parts;  // by rank of the group; of a message 0: sender, 1: receiver
    int sender = -1;          // of a message, ranks of the group
    int receiver = -1;
    int pool = -1;  // of a message that is received from FABRICSHM_ANY_PEER: which pool
    bool shared = false;
    Readers readers = Readers::kAll;
    int writer = 0;            // of a shared output: the rank of the group that overwrites it
    std::vector<int> victims;  // ranks of the group whose death may make this operation fail
    int companion = -1;        // the operation that needs this one: they are left out together

    bool is_message() const { return kind == FABRICSHM_SEND; }
    int world() const { return static_cast<int>(members.size()); }
    /// The rank of the group that `rank` of the world has; -1: none.
    int group_rank(int rank) const;
};

/// One line of a rank's script.
struct Action {
    enum class Type : std::uint8_t {
        kRun,        // `operation`; of a message the side that this rank has
        kStart,      // the same with fabricshm_start()
        kWait,       // the end of what was started
        kOverwrite,  // of the shared output of `operation`, by its writer
        kInspect,    // the shared output of `operation` holds what its writer wrote
        kVerify,     // all memory of this rank that no operation is using
        kKill,       // this rank ends by SIGKILL
        kProbe,      // a barrier of `group` that must fail because of `victims`
        kShrink,     // of `group`, which then has `members`
        kQuiesce,    // of the broken `group`, which this rank leaves
        kLeave,      // of `group`
    };
    Type type = Type::kVerify;
    int operation = -1;
    int group = -1;
    std::uint32_t pause = 0;   // turns of an empty loop before it
    bool poll = false;         // kWait: by fabricshm_test() first
    std::vector<int> victims;  // ranks of the group before
    std::vector<int> members;  // world ranks of the group afterwards
};

struct Program {
    std::uint64_t seed = 0;
    int world = 0;
    std::vector<std::vector<int>> groups;  // at the start: world ranks by rank of the group
    std::vector<Operation> operations;
    std::vector<std::vector<int>> pools;       // operations that FABRICSHM_ANY_PEER may receive
    std::vector<std::vector<Action>> scripts;  // by world rank
    std::uint64_t slab_bytes = 0;
    std::string tuning;     // the text of the table; empty: none
    std::string algorithm;  // FABRIC_ALGORITHM; empty: not set
    bool check = false;     // FABRIC_CHECK=buffers
    bool heap = false;      // arena slabs come from fabricshm_alloc() instead of a region
};

/// What programs may contain.
struct ProgramLimits {
    int least_ranks = 2;
    int most_ranks = 8;
    bool hosts = false;    // ranks share no caches: what docs/visibility.md leaves out is left out
    bool deaths = true;    // ranks are killed, or leave a group
    bool shared = true;    // outputs that all ranks have in common
    bool messages = true;  // SEND and RECV
    int most_ahead = 12;   // messages that one rank sends to another before that one receives
    std::uint64_t most_bytes = 24u << 20;
};

Program make_program(std::uint64_t seed, const ProgramLimits& limits);

/// Leaves out the operations whose `kept` is false, with all actions on them.
Program without(const Program& program, const std::vector<bool>& kept);

/// One line.
std::string describe(const Operation& operation);
std::string describe(const Program& program, const Action& action);
/// All of it, for people.
std::string describe(const Program& program);

}  // namespace oracle
