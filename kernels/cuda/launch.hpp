// What the host hands to the CUDA kernels, and the words through which they and the ranks of CPUs
// meet: plain data without CUDA's headers. docs/cuda.md has the protocol, adr/0037 why it is one of
// its own.
//
// Each kernel takes one of the structs below by value, as its only parameter. Addresses are device
// addresses (`Address`): of registered pool memory those that cuMemHostGetDevicePointer gives, of
// device memory those of cuMemAlloc or of a peer's mapped handle.
//
//   module      kernels                                     argument
//   reduce      fabric_copy                                 CopyArgs
//               fabric_reduce                               ReduceArgs
//               fabric_collective                           CollectiveArgs
//   optimise    fabric_step                                 StepArgs
//
// A module's bytes (a fatbin: cuModuleLoadData or cuLibraryLoadData take it as it is) are found by
// embedded_module(), kernels/cuda/embedded.hpp.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.hpp"
#include "kernels/optimise.hpp"

namespace kernels::cuda {

using Address = std::uint64_t;

inline constexpr const char* kCopyKernel = "fabric_copy";
inline constexpr const char* kReduceKernel = "fabric_reduce";
inline constexpr const char* kCollectiveKernel = "fabric_collective";
inline constexpr const char* kStepKernel = "fabric_step";

/// Threads of a block, of every kernel. All are compiled for this many at most.
inline constexpr unsigned kBlockThreads = 512;
/// Blocks of a grid that waits for peers (collective, step with a group): any number works, since
/// no block waits for one that has not started; but ranks that share one device need room for a
/// block of each at the same time. So: at most SM count / ranks on the device, and this.
inline constexpr unsigned kMaxBlocks = 64;
/// Bytes of work of one operation that pay for one more block.
inline constexpr std::uint64_t kBytesPerBlock = 32 * 1024;

/// Blocks for an operation that moves `bytes`, on a device that gives this rank `room` blocks.
constexpr unsigned blocks_for(std::uint64_t bytes, unsigned room) noexcept {
    const std::uint64_t wanted = (bytes + kBytesPerBlock - 1) / kBytesPerBlock;
    const std::uint64_t limit = room < kMaxBlocks ? room : kMaxBlocks;
    return static_cast<unsigned>(wanted < 1 ? 1 : wanted > limit ? limit : wanted);
}

/// Ranks of a device group, and sources of a reduction.
inline constexpr int kMaxRanks = 32;

// --- local kernels: they wait for nothing --------------------------------------------------------

/// Where a kernel asks whether it may begin, and says that it is at work (gate_body.hpp).
struct Gate {
    Address grid;    // GridWords; 0: no gate, the caller knows when the kernel runs
    Address status;  // StatusWords
    // 1: of those that StatusWords::ended counts. Not what is captured, which runs as often as its
    // graph is launched.
    std::uint64_t counts;
};

struct CopyArgs {
    Address source;
    Address destination;  // any alignment; 16-byte accesses where both are equally aligned
    std::uint64_t bytes;
    Gate gate;
};

/// kernels::ReduceJob with addresses; the bits are the same.
struct ReduceArgs {
    DType type;
    ReduceOp op;
    std::int32_t source_count;       // 1 to kMaxRanks
    std::int32_t destination_count;  // 1 to kMaxRanks
    std::int32_t divisor;            // for kAvg
    std::uint64_t count;             // elements
    Address sources[kMaxRanks];      // aligned to the element only
    Address destinations[kMaxRanks];
};

// --- the words of a device group: in the pool, read and written by all ranks ---------------------

inline constexpr std::uint64_t kDeviceGroupMagic = 0x3144'4352'4241'4600;  // "FABRCD1"
inline constexpr std::uint32_t kDeviceGroupVersion = 2;

/// Where a buffer lies, as its rank shows it to the others: 2 bits of space, one that says that its
/// parts are apart, then an offset.
enum class Space : std::uint64_t {
    kPool = 0,     // offset from the start of the arena
    kDevice = 1,   // offset in the device memory that the rank has exported (CUDA IPC, VMM handle)
    kPrivate = 3,  // the peers cannot reach it
};
using Place = std::uint64_t;
inline constexpr int kSpaceShift = 62;
constexpr Place make_place(Space space, std::uint64_t offset) noexcept {
    return static_cast<std::uint64_t>(space) << kSpaceShift | offset;
}
inline constexpr Place kPrivatePlace = make_place(Space::kPrivate, 0);
/// Of an input of kReduceScatter whose parts, one for each rank, are `stride` apart
/// (CollectiveArgs), and not next to each other.
inline constexpr Place kApart = Place{1} << 61;

/// What a rank shows of one operation, for even and odd sequences. Valid once `arrived` says so.
struct ShownOperation {
    std::uint64_t signature;  // signature_of() its arguments
    Place input;
    Place output;
};

/// The ring goes on slice by slice, so that blocks need not wait for each other.
inline constexpr int kRingSlices = 16;

/// One rank's words. It is their only writer: neither PCIe nor CXL needs to carry an atomic
/// exchange. `arrived` and `done` hold a Turn: the epoch in the upper half, in the lower the
/// sequence, which rises by one with each operation. It lives here and not in the arguments, so
/// that a captured CUDA graph can be replayed: a kernel goes on from what its own `arrived` holds.
struct alignas(128) DeviceRankWords {
    std::uint64_t arrived;  // release: what the rank showed and its input are there
    // Release: the rank will neither read nor write buffers of others in this operation any more,
    // and what it wrote is there.
    std::uint64_t done;
    std::uint64_t failure;  // a Report; 0 while the rank works, then for good
    ShownOperation shown[2];
    char pad_[128 - 3 * 8 - 2 * sizeof(ShownOperation)];
    // Release: how far the rank has come in a slice of the ring, see make_steps().
    std::uint64_t steps[kRingSlices];
};
static_assert(sizeof(DeviceRankWords) == 256);

/// The block starts with this and goes on with DeviceRankWords[world]. The host fills it, all words
/// 0 but those named, before any rank starts, and makes another (or the same with a higher epoch,
/// when no rank is at work) after a failure.
struct alignas(128) DeviceGroupHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t world;
    std::uint32_t epoch;
    std::uint32_t zero_;
    // A Report that ends every wait of all ranks: written by any host process (the daemon when a
    // rank's process died, a rank's host thread at fabricshm_abort), never by a kernel.
    std::uint64_t abort;
    char pad_[128 - 32];
};
static_assert(sizeof(DeviceGroupHeader) == 128);

constexpr std::uint64_t device_group_bytes(int world) noexcept {
    return sizeof(DeviceGroupHeader) + static_cast<std::uint64_t>(world) * sizeof(DeviceRankWords);
}

/// Why an operation ended early. The values are written into shared memory: they never change.
enum class Outcome : std::uint32_t {
    kOk = 0,
    kAborted = 1,      // the abort word; the rank is the one that it names
    kTimeout = 2,      // the rank is the one that was waited for
    kMismatch = 3,     // the rank called another operation, or with other arguments
    kBadPlace = 4,     // what the rank showed is outside its memory, or not aligned to an element
    kUnreachable = 5,  // the rank's buffer is in memory that this rank has not mapped
    kPeerFailed = 6,   // the rank ended an operation of this epoch with a failure of its own
    kBroken = 7,       // this rank did so before: its group takes no more operations
    kBadEpoch = 8,     // the block has another epoch, or is none
    kLeft = 9,         // the rank has left the group, and its kernels do nothing any more
};

/// An Outcome in the lower half, and in the upper the rank that it is about.
using Report = std::uint64_t;
constexpr Report make_report(Outcome outcome, int rank) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32 |
           static_cast<std::uint32_t>(outcome);
}
constexpr Outcome outcome_of(Report report) noexcept {
    return static_cast<Outcome>(static_cast<std::uint32_t>(report));
}
constexpr int rank_of(Report report) noexcept {
    return static_cast<std::int32_t>(report >> 32);
}

// --- collectives ---------------------------------------------------------------------------------

enum class CollectiveKind : std::uint32_t {
    kBarrier = 0,
    kAllReduce = 1,
    kReduceScatter = 2,  // `count` elements of each rank's part; its input has world * count
    kAllGather = 3,      // `count` elements of each rank's part; its output has world * count
    kBroadcast = 4,      // from the input of `root` to all outputs
    kStep = 5,           // StepArgs
};

enum class Algorithm : std::uint32_t {
    // flat for up to kFlatBytes when nothing forbids it, or where an output is private; else
    // direct.
    kAuto = 0,
    kFlat = 1,    // each rank reads all inputs and writes its output
    kDirect = 2,  // each rank reduces its part of all inputs and stores it in all outputs
    // Each rank reads only the rank before it; sums are in the order of the ring and round when
    // they
    // are stored. Never chosen by kAuto.
    kRing = 3,
};
inline constexpr std::uint64_t kFlatBytes = 16 * 1024;

/// Memory that this process has mapped at `base`. bytes 0: it has not.
struct Window {
    Address base;
    std::uint64_t bytes;
};

/// In device memory, zeroed once by the host, one for each stream of a group (operations of one
/// group are one after the other on all ranks, so one does). Its kernels leave it zeroed. It is
/// never given back, since a graph may be launched at any time.
struct alignas(128) GridWords {
    std::uint32_t tickets;   // blocks that have started
    std::uint32_t finished;  // blocks that have done their part
    std::uint32_t go;        // 1: the leader has filled in what is below; 2: end without work
    std::uint32_t lead;      // blocks that gave up; the first stores the report
    std::uint64_t turn;      // of this operation
    Report report;
    std::uint32_t algorithm;
    std::uint32_t zero_;
    Address inputs[kMaxRanks];
    Address outputs[kMaxRanks];  // 0: private
};

/// Host-visible (registered or pinned) memory, one for each stream of a group, never given back
/// either. Written by the kernels but for `closed`.
struct alignas(64) StatusWords {
    // The first failure, for good (the host clears it when it makes a group of a new epoch).
    Report report;
    std::uint64_t turn;        // the last operation that ended, well or not
    std::uint64_t operations;  // that ended well
    std::uint64_t ended;       // kernels that have ended, of those that count (Gate)
    std::uint64_t busy;        // not 0: a kernel may touch memory of the group
    std::uint64_t closed;      // by the host, for good, not 0: kernels that begin do nothing
};

struct GroupArgs {
    Address block;   // DeviceGroupHeader
    Address grid;    // GridWords
    Address status;  // StatusWords
    // How long an operation may wait for all to arrive, for all to end, and in each step of a ring,
    // by the device's clock (%globaltimer).
    std::uint64_t timeout_ns;
    std::int32_t rank;
    std::int32_t world;
    std::uint32_t epoch;
    std::uint32_t counts;      // as Gate::counts
    Window pool;               // the arena
    Window device[kMaxRanks];  // what each rank has exported
};

/// The buffers of this rank: as it reaches them, and as it shows them. Count and type are those of
/// all ranks. An output may be this rank's input (not with kFlat) or, of kAllGather,
/// hold the input at the rank's part, of kReduceScatter be that part of the input.
struct CollectiveArgs {
    GroupArgs group;
    CollectiveKind kind;
    Algorithm algorithm;
    DType type;
    ReduceOp op;
    std::int32_t root;
    std::int32_t divisor;  // for kAvg
    std::uint64_t count;   // elements; kAllGather and kBroadcast move bytes, of any type
    // Bytes from part to part of buffers of which this operation takes a piece: of this rank's
    // output of kAllGather, of its input of kReduceScatter and of those that are shown as kApart.
    // The same on all ranks; 0: parts are next to each other.
    std::uint64_t stride;
    Address input;
    Address output;
    Place shown_input;
    Place shown_output;
};

// --- fused reduction and optimiser step ----------------------------------------------------------

/// One step of `count` elements, those from `begin` on, of flat buffers of `total` elements that
/// all ranks have. With a group (world > 1): the gradients are the ranks' shown inputs, in the
/// order of ranks, and the new parameters go to all ranks' shown outputs; each rank owns its own
/// elements. Without one (world 1, group.block 0): `gradients` are read and `publish` is written,
/// no waiting; the group's grid and status are as of a Gate.
struct StepArgs {
    GroupArgs group;
    Rule rule;
    DType gradient_type;  // f32, f16, bf16
    DType publish_type;   // f32, f16, bf16: of what the outputs receive
    std::int32_t gradient_count;
    float scale;
    std::uint32_t zero_;
    std::uint64_t total;
    std::uint64_t begin;
    std::uint64_t count;
    Address factors;     // a StepFactors: in memory, so that a replayed graph finds the new
    Address weights;     // f32, one for each gradient; 0: all 1
    Address parameters;  // f32, of this rank's `count` elements, in place; as the state
    Address first;       // those that the rule has; SGD without momentum may do without
    Address second;
    Address maximum;
    Address gradients[kMaxRanks];  // whole buffers; without a group
    Address publish;               // whole buffer, 0: none; without a group
    Place shown_gradient;          // with a group
    Place shown_publish;           // with a group; private: this rank takes no parameters
};

static_assert(sizeof(CollectiveArgs) <= 4096 && sizeof(StepArgs) <= 4096, "CUDA's limit");

}  // namespace kernels::cuda
