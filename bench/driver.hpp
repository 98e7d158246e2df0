// The measuring loop that every contender shares, so that no contender is timed differently.
//
// One process per rank. Between its turns a rank sleeps in read() on its own control pipe; a turn
// is one line from the orchestrator (compare.py) and one line back:
//
//   measure <collective> <bytes> <place> <memory> <algorithm> <pairs> <warmup> <iterations> <check>
//     -> time <ns of this rank for all iterations> | unsupported <why> | wrong <why>
//   drop  -> dropped     frees the buffers of the case
//   quit  -> (none)      leaves; so does the end of the pipe, when the orchestrator died

#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/local_step.hpp"

namespace bench {

/// In the order of the names in parse_turn().
enum class Collective {
    kAllreduce,
    kAllGather,
    kReduceScatter,
    kBroadcast,
    kBarrier,
    kSendRecv,  // a ping-pong of each even rank with the odd one behind it
    kScan,
    kStep  // an optimiser step: see Case
};
enum class Place { kOut, kIn, kShared };  // kShared: every rank passes the same output buffer
enum class Memory { kHeap, kArena };

/// What is measured. `bytes` is the whole vector: what allreduce and broadcast hand out, what
/// all_gather collects and reduce_scatter starts from; a rank's part is `bytes / world`. Of send
/// and receive it is one message, and one run is two of them: there and back. Of a step of AdamW it
/// is a gradient: kIn is an allreduce of it in place and then local_step() on the rank's own copy
/// of all parameters, kShared what the contender does itself with parameters that all ranks share.
struct Case {
    Collective collective = Collective::kAllreduce;
    std::size_t bytes = 0;
    Place place = Place::kOut;
    Memory memory = Memory::kHeap;
    std::string algorithm = "auto";
    int pairs = 1;  // buffer pairs used in turn: more than the cache holds makes them cold

    bool operator==(const Case&) const = default;
};

/// One pair of buffers of one rank, in elements of float.
struct Buffers {
    float* input = nullptr;
    float* output = nullptr;
    std::size_t input_count = 0;
    std::size_t output_count = 0;
};

/// One rank of one contender. Single-threaded; a failure ends the process (see die()).
class Contender {
  public:
    virtual ~Contender() = default;

    /// Constant over its life.
    virtual int rank() const = 0;
    virtual int world() const = 0;
    virtual std::string version() const = 0;

    /// Empty when the case can be run, else the reason why not; the same on every rank.
    virtual std::string refuses(const Case& wanted) const = 0;

    /// Where an in-place reduce_scatter leaves its result: at the rank's own part of the input, or
    /// (MPI, gloo) at the input's start. Decides where verify() looks, and nothing else.
    virtual bool in_place_result_at_start() const { return true; }

    /// Memory for buffers. The default serves kHeap, with huge pages where they help the peers.
    virtual void* allocate(Memory memory, std::size_t bytes);
    virtual void release(Memory memory, void* block, std::size_t bytes);
    /// Zeros, by the rank that uses the block: its pages are where that rank is.
    virtual void clear(Memory memory, void* block, std::size_t bytes);

    /// The one buffer that all ranks share, on all of them at the same time; only for contenders
    /// that accept Place::kShared.
    virtual void* allocate_shared(std::size_t bytes);
    virtual void release_shared(void* block, std::size_t bytes);

    /// Of a step with shared parameters, in place of prepare(): makes all memory, zeros, until
    /// forget(). What lies where, in this process.
    virtual std::vector<StepTensor> prepare_step(const Case& wanted);

    /// Called once per case with all its buffer pairs, which stay until forget(); run(i) then works
    /// on pair i.
    virtual void prepare(const Case& wanted, const std::vector<Buffers>& pairs) = 0;
    virtual void forget() {}  // the buffers of the case are about to go

    /// Blocks until this rank is done, as a trainer would see it. What it costs is what is
    /// measured: nothing else may happen in here.
    virtual void run(std::size_t pair) = 0;

    /// Waits for what run() has only begun, on a stream. Part of what is measured, once for all
    /// iterations.
    virtual void finish() {}

    /// By the contender's own means, so that no other library's progress is needed.
    virtual void barrier() = 0;
};

/// Serves turns until a line says to quit. `control` is the folder with the pipes; `name` the
/// prefix.
int serve(Contender& contender, const std::string& control, const std::string& name);

/// Makes `world` processes of this one by fork(), which call body(rank) at the same time, this one
/// with rank 0: before it has threads or a device. Returns what the body did, for rank 0 when all
/// others have ended. The death of rank 0 ends them.
int run_ranks(int world, const std::function<int(int rank)>& body);

/// Prints one line and ends the process: a benchmark has nothing to recover.
[[noreturn]] void die(const std::string& what);

/// The rank with which `rank` plays ping-pong.
inline int partner_of(int rank) {
    return rank ^ 1;
}

/// Binds this process to core `number` of those it may use, counted round and round. Before
/// anything is opened: libraries look at the mask when they start.
void pin_to_core(int number);

/// `--name value` from the command line, or `fallback`; die() when it is missing and required.
std::string option(int argc, char** argv, const std::string& name, const char* fallback = nullptr);

}  // namespace bench
