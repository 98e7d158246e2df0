// The collectives of a device group: one kernel each, no host thread during it.
//
// flat      each rank reads all inputs and writes its own output
// direct    each rank reduces its part of all inputs, once, and stores it in all outputs
// ring      each rank reads only the rank before it
// all_gather, reduce_scatter and broadcast read what they need from their peers' inputs.
//
// Reductions are in the order of ranks: the bits of kernels::reduce() over all inputs, on every
// rank, but for the ring, which adds up a chunk in its own order and rounds at each step.

#pragma once

#include "kernels/cuda/group_body.hpp"

namespace kernels::cuda {

/// Elements [begin, end) of `count` that `rank` reduces for all; whole vectors of every type.
struct Share {
    std::uint64_t begin, end;
};
constexpr Share share_of_rank(std::uint64_t count, int rank, int world) {
    constexpr std::uint64_t kUnit = 16;
    const std::uint64_t units = count / kUnit;
    const auto all = static_cast<std::uint64_t>(world), one = static_cast<std::uint64_t>(rank);
    const auto start = [&](std::uint64_t index) {
        const std::uint64_t longer = units % all;
        return (units / all * index + (index < longer ? index : longer)) * kUnit;
    };
    return {start(one), one + 1 == all ? count : start(one + 1)};
}

namespace detail {

constexpr Call call_of(const CollectiveArgs& args) {
    const std::uint64_t bytes = args.count * bytes_of(args.type);
    Call call = {};
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(args.kind), static_cast<std::uint64_t>(args.algorithm),
          static_cast<std::uint64_t>(args.type), static_cast<std::uint64_t>(args.op),
          static_cast<std::uint64_t>(args.root), static_cast<std::uint64_t>(args.divisor),
          args.count, args.stride}) {
        call.signature = mix(call.signature, value);
    }
    const bool reduces =
        args.kind == CollectiveKind::kAllReduce || args.kind == CollectiveKind::kReduceScatter;
    call.element_bytes = call.output_element_bytes = reduces ? alignment_of(args.type) : 1;
    call.only_input_of = args.kind == CollectiveKind::kBroadcast ? args.root : -1;
    if (args.kind != CollectiveKind::kBarrier) call.input_bytes = bytes;
    if (args.kind == CollectiveKind::kReduceScatter) {
        call.part_bytes = bytes;
        call.stride = args.stride;
    }
    if (args.kind == CollectiveKind::kAllReduce) call.output_bytes = bytes;
    call.input = args.input;
    call.output = args.output;
    call.shown_input = args.shown_input;
    call.shown_output = args.shown_output;
    return call;
}

// Of places of one memory: each rank's device memory is its own, the pool is everybody's.
constexpr bool overlap(Place one, int rank, Place other, int other_rank, std::uint64_t bytes) {
    if (space_of(one) != space_of(other) || space_of(one) == Space::kPrivate) return false;
    if (space_of(one) == Space::kDevice && rank != other_rank) return false;
    const std::uint64_t a = offset_of(one), b = offset_of(other);
    return a < b ? b - a < bytes : a - b < bytes;
}

// The algorithm of an allreduce, from what all ranks show and nothing else: all choose alike. A
// private output cannot be stored into by the peers; an output over an input must not be written
// while the peers still read all of that input.
template <class Grid>
constexpr Report choose(Grid& grid, const CollectiveArgs& args, Part<Grid>& part,
                        std::uint64_t turn) {
    const std::uint64_t bytes = args.count * bytes_of(args.type);
    int hidden = -1, in_place = -1;
    for (int rank = 0; rank < args.group.world; ++rank) {
        const Place output = part.read_shown(rank, turn).output;
        if (space_of(output) == Space::kPrivate) {
            hidden = rank;
            continue;
        }
        for (int other = 0; other < args.group.world; ++other) {
            const Place input = part.read_shown(other, turn).input;
            if (overlap(output, rank, input, other, bytes)) in_place = rank;
        }
    }
    Algorithm chosen = args.algorithm;
    if (chosen == Algorithm::kAuto) {
        const bool flat = hidden >= 0 || (bytes <= kFlatBytes && in_place < 0);
        chosen = flat ? Algorithm::kFlat : Algorithm::kDirect;
    }
    if (chosen == Algorithm::kFlat && in_place >= 0) {
        return make_report(Outcome::kBadPlace, in_place);
    }
    if (chosen != Algorithm::kFlat && hidden >= 0) {
        return make_report(Outcome::kUnreachable, hidden);
    }
    grid.store(FABRIC_MEMBER(args.group.grid, GridWords, algorithm),
               static_cast<std::uint32_t>(chosen));
    return 0;
}

// The ring, a -> b -> c -> d -> a, of collective/ring.cpp: the buffer is a chunk per rank. First
// the sums travel: in step s rank r adds its own input of chunk r-s-1 to what the rank before it
// has there. Then the results: in step s it fetches chunk r-s. A rank overwrites a chunk in the
// second half only when the rank behind it has read what was there: the finished chunk has come
// around through that rank. So outputs may be inputs, and one word per rank and slice is enough.
//
// Slices go around apart from each other. Blocks take them in turn, and on every rank the slices of
// the block that started first go on as soon as it runs.
template <class Grid, class Work>
class Ring {
  public:
    constexpr Ring(Grid& grid, const CollectiveArgs& args, Work& work, const Opened& opened)
        : grid_(grid),
          args_(args),
          work_(work),
          block_(opened.block),
          world_(args.group.world),
          before_((args.group.rank + args.group.world - 1) % args.group.world),
          turn_(
              grid.template load<std::uint64_t>(FABRIC_MEMBER(args.group.grid, GridWords, turn))) {}

    constexpr void run() {
        grid_.sync_block();  // all have read what opened the operation from the shared words
        for (int step = 0; step < 2 * (world_ - 1); ++step) {
            for (std::uint64_t slice = block_; slice < kRingSlices; slice += grid_.blocks()) {
                if (!await(static_cast<int>(slice), step)) return;
                move(static_cast<int>(slice), step);
                grid_.sync_block();
                if (grid_.thread() != 0) continue;
                Part<Grid> part(grid_, args_.group);
                part.publish_steps(static_cast<int>(slice), turn_,
                                   static_cast<std::uint64_t>(step) + 1);
            }
        }
    }

  private:
    // Until the rank before has done as many steps. The deadline is that of one step.
    constexpr bool await(int slice, int step) {
        if (step == 0) return true;  // inputs are there: it has arrived
        if (grid_.thread() == 0) {
            Part<Grid> part(grid_, args_.group);
            const Report report =
                part.await_steps(before_, slice, turn_, static_cast<std::uint64_t>(step));
            if (report != 0) give_up(grid_, args_.group, report);
            grid_.shared(0) = report;
        }
        grid_.sync_block();
        return grid_.shared(0) == 0;
    }

    constexpr void move(int slice, int step) {
        const bool adds = step < world_ - 1;
        const int index = adds ? args_.group.rank - step - 1 : args_.group.rank - step + world_ - 1;
        const Share chunk = share_of_rank(args_.count, (index + 2 * world_) % world_, world_);
        const Share part = share_of_rank(chunk.end - chunk.begin, slice, kRingSlices);
        const std::uint64_t size = bytes_of(args_.type);
        const std::uint64_t offset = (chunk.begin + part.begin) * size;
        const Address before =
            table(step == 0 ? FABRIC_MEMBER(args_.group.grid, GridWords, inputs)
                            : FABRIC_MEMBER(args_.group.grid, GridWords, outputs)) +
            offset;
        const Worker worker = {grid_.thread(), grid_.threads()};
        const std::uint64_t count = part.end - part.begin;
        if (!adds) {
            work_.copy(grid_, args_.output + offset, before, count * size, worker);
            return;
        }
        const Address sources[] = {before, args_.input + offset};
        const Address destination = args_.output + offset;
        const bool divides = args_.op == ReduceOp::kAvg && step == world_ - 2;
        const ReduceOp op = args_.op == ReduceOp::kAvg && !divides ? ReduceOp::kSum : args_.op;
        work_.reduce(grid_, {args_.type, op, 2, 1, args_.divisor, count, sources, &destination},
                     worker);
    }

    constexpr Address table(Address of) const {
        return grid_.template load<Address>(of +
                                            static_cast<std::uint64_t>(before_) * sizeof(Address));
    }

    Grid& grid_;
    const CollectiveArgs& args_;
    Work& work_;
    std::uint64_t block_;
    int world_, before_;
    std::uint64_t turn_;
};

template <class Grid, class Work>
constexpr void all_reduce(Grid& grid, const CollectiveArgs& args, Work& work, Operands job,
                          const Opened& opened) {
    const auto chosen =
        grid.template load<std::uint32_t>(FABRIC_MEMBER(args.group.grid, GridWords, algorithm));
    if (static_cast<Algorithm>(chosen) == Algorithm::kRing && args.group.world > 1) {
        return Ring<Grid, Work>(grid, args, work, opened).run();
    }
    if (static_cast<Algorithm>(chosen) == Algorithm::kDirect) {
        const Share share = share_of_rank(args.count, args.group.rank, args.group.world);
        job.destinations =
            reinterpret_cast<const Address*>(FABRIC_MEMBER(args.group.grid, GridWords, outputs));
        job.destination_count = args.group.world;
        job.count = share.end - share.begin;
        job.source_offset = job.destination_offset = share.begin * bytes_of(args.type);
    }
    work.reduce(grid, job, opened.worker);
}

}  // namespace detail

/// How a grid's threads do an operation's work on the data.
struct SpanWork {
    template <class Grid>
    constexpr void reduce(Grid& grid, const Operands& job, Worker worker) const {
        reduce_span(grid, job, worker);
    }
    template <class Grid>
    constexpr void copy(Grid& grid, Address to, Address from, std::uint64_t bytes,
                        Worker worker) const {
        copy_span(grid, to, from, bytes, worker);
    }
};

template <class Grid, class Work>
constexpr void collective_body(Grid& grid, const CollectiveArgs& args, Work work) {
    const GroupArgs& group = args.group;
    const Opened opened =
        open_operation(grid, group, detail::call_of(args),
                       [&](detail::Part<Grid>& part, std::uint64_t turn) -> Report {
                           if (args.kind != CollectiveKind::kAllReduce) return 0;
                           return detail::choose(grid, args, part, turn);
                       });
    if (opened.works) {
        const std::uint64_t bytes = args.count * bytes_of(args.type);
        const auto* inputs =
            reinterpret_cast<const Address*>(FABRIC_MEMBER(group.grid, GridWords, inputs));
        Operands job = {args.type,    args.op,    group.world, 1,
                        args.divisor, args.count, inputs,      &args.output};
        switch (args.kind) {
            case CollectiveKind::kAllReduce:
                detail::all_reduce(grid, args, work, job, opened);
                break;
            case CollectiveKind::kReduceScatter:
                work.reduce(grid, job, opened.worker);  // of the inputs' parts of this rank
                break;
            case CollectiveKind::kAllGather:
                for (int i = 0; i < group.world; ++i) {
                    // Each begins with its own, so that not all read one peer at the same time.
                    const int rank = (group.rank + i) % group.world;
                    const std::uint64_t stride = args.stride != 0 ? args.stride : bytes;
                    const Address to = args.output + static_cast<std::uint64_t>(rank) * stride;
                    work.copy(grid, to, inputs[rank], bytes, opened.worker);
                }
                break;
            case CollectiveKind::kBroadcast:
                work.copy(grid, args.output, inputs[args.root], bytes, opened.worker);
                break;
            case CollectiveKind::kBarrier:
            case CollectiveKind::kStep:
                break;
        }
    }
    close_operation(grid, group);
}

}  // namespace kernels::cuda
