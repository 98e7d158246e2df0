// make_program(): the choices.

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <numeric>

#include "tests/oracle/model.hpp"
#include "tests/oracle/program.hpp"

namespace oracle {

namespace {

// Messages up to here are sent without waiting for the receiver (docs/collectives.md, Messages).
constexpr std::uint64_t kEagerBytes = 64 << 10;
// What one rank sends ahead to another one that has not asked yet.
constexpr std::uint64_t kAheadBytes = 256 << 10;
constexpr int kMaxOutstanding = 6;

struct Interval {
    Slab slab;
    std::uint64_t offset;
    std::uint64_t bytes;
    int operation;
};

struct Class {
    int weight;
    std::uint64_t slab_bytes;
    int steps;
    int most_ranks;
};

// Many small programs, few large ones: most of the routes change below 64 KiB.
constexpr Class kClasses[] = {
    {46, 64 << 10, 120, 8},  // up to 16 KiB
    {36, 2 << 20, 60, 8},    // up to 512 KiB
    {15, 12 << 20, 25, 6},   // up to 3 MiB
    {3, 80 << 20, 6, 3},     // up to 20 MiB
};

class Generator {
  public:
    Generator(std::uint64_t seed, const ProgramLimits& limits)
        : random_(mix(seed, 0x6f7261636c65)), limits_(limits) {
        program_.seed = seed;
    }

    Program make();

  private:
    struct Rank {
        bool alive = true;
        std::vector<Interval> live;
        std::vector<int> outstanding;
    };
    struct Group {
        std::vector<int> members;
        std::uint64_t common_first = 0;
        std::uint64_t common_bytes = 0;
    };

    // Parts of a program.
    void choose_shape();
    void choose_tuning();
    void collective(int group);
    void shared_output(int group);
    void messages(int group);
    void deaths(int group);
    void leaving(int group);

    // Messages.
    void send_then_receive(int group);
    void started_messages(int group);
    void ordered_messages(int group);
    void any_peer(int group);
    int new_message(int group, int sender, int receiver, std::uint64_t most, int tag);

    // Choices.
    std::uint64_t choose_bytes(std::uint64_t most);
    void choose_counts(Operation& operation, std::uint64_t most);
    void choose_op(Operation& operation);
    void choose_kind(Operation& operation);
    void choose_values(Operation& operation);
    Operation new_operation(int group);
    Operation new_collective(int group, std::uint64_t most);

    // Buffers.
    bool allocate(int rank, Slab slab, std::uint64_t bytes, std::uint64_t alignment, int operation,
                  Buffer& buffer);
    Buffer place(int rank, std::uint64_t bytes, std::uint64_t element, int operation);
    Buffer place_in_arena(int rank, std::uint64_t bytes, std::uint64_t element, int operation);
    void place_parts(Operation& operation, int number);
    void place_part(Operation& operation, int number, int member);
    void release(int rank, int operation);

    // Scripts.
    void emit(int rank, Action::Type type, int operation);
    void emit_group(int rank, Action::Type type, int group, const std::vector<int>& victims,
                    const std::vector<int>& members);
    void run_or_start(int rank, int operation, int start_chance);
    void wait_for(int rank, int operation);
    void wait_some(int rank, int percent);
    void drain(int rank);
    void synchronise(int group, int companion = -1);
    int add(Operation operation);
    Operation& at(int number) { return program_.operations[static_cast<std::size_t>(number)]; }
    Rank& rank_at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    Group& group_at(int group) { return groups_[static_cast<std::size_t>(group)]; }

    Random random_;
    const ProgramLimits limits_;
    Program program_;
    std::vector<Rank> ranks_;
    std::vector<Group> groups_;
    std::uint64_t most_bytes_ = 0;  // of one buffer
    int steps_ = 0;
    bool exact_ = false;  // an allreduce may go round the ring, whose order of sums is another
    int placement_ = 0;   // of this program: any, arena, private
};

// ---- Shape --------------------------------------------------------------------------------------

void Generator::choose_shape() {
    int dice = random_.between(0, 99);
    const Class* kind = kClasses;
    while (dice >= kind->weight) dice -= (kind++)->weight;
    if (limits_.hosts && kind->slab_bytes > (12u << 20)) --kind;
    program_.slab_bytes = kind->slab_bytes;
    most_bytes_ = std::min(kind->slab_bytes / 4, limits_.most_bytes);
    steps_ = random_.between(kind->steps / 3, kind->steps);
    const int most = std::max(limits_.least_ranks, std::min(limits_.most_ranks, kind->most_ranks));
    program_.world = random_.between(limits_.least_ranks, most);
    // Small worlds are where most programs live, and faster.
    if (random_.chance(40)) {
        program_.world = std::min(program_.world, random_.between(limits_.least_ranks, most));
    }
    ranks_.resize(static_cast<std::size_t>(program_.world));
    program_.scripts.resize(ranks_.size());
    program_.heap = random_.chance(40);
    program_.check = random_.chance(15);
    placement_ = random_.between(0, 3);

    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    const int count = random_.chance(60) ? 1 : random_.between(2, 4);
    for (int i = 0; i < count; ++i) {
        std::vector<int> members = all;
        if (random_.chance(50)) random_.shuffle(members);
        if (i != 0) {
            members.resize(static_cast<std::size_t>(random_.between(1, program_.world)));
        }
        program_.groups.push_back(members);
        const std::uint64_t part = program_.slab_bytes / static_cast<std::uint64_t>(count);
        groups_.push_back({members, part * static_cast<std::uint64_t>(i), part});
    }
}

void Generator::choose_tuning() {
    static const std::vector<std::uint64_t> kSizes = {0,    8,    64,    256,   552,     1024,
                                                      4096, 8192, 16384, 65536, 1u << 20};
    if (random_.chance(10)) {
        static const std::vector<std::string> kForced = {"flat", "direct", "ring", "staged",
                                                         "host"};
        program_.algorithm = random_.pick(kForced);
        exact_ = program_.algorithm == "ring";
    }
    if (random_.chance(50)) return;
    for (int world = 1; world <= program_.world; ++world) {
        const auto line = [&](const char* key, std::uint64_t value) {
            if (random_.chance(40)) return;
            program_.tuning +=
                std::to_string(world) + "." + key + " = " + std::to_string(value) + "\n";
        };
        line("flat_max_bytes", std::min<std::uint64_t>(random_.pick(kSizes), 65536));
        line("ahead_max_bytes", std::min<std::uint64_t>(random_.pick(kSizes), 16384));
        line("two_phase_from_bytes", random_.pick(kSizes));
        line("two_phase_world", static_cast<std::uint64_t>(random_.between(2, 5)));
        line("piece_bytes", 4096u << random_.below(9));
        line("claim_from_bytes", random_.pick(kSizes) * 4);
        line("chunk_bytes", 4096u << random_.below(8));
        line("streaming_from_bytes", random_.pick(kSizes) * 8);
        line("spins", random_.below(200));
        line("yields", random_.below(300));
    }
}

std::uint64_t Generator::choose_bytes(std::uint64_t most) {
    static const std::vector<std::uint64_t> kEdges = {0,
                                                      1,
                                                      8,
                                                      55,
                                                      56,
                                                      57,
                                                      64,
                                                      128,
                                                      496,
                                                      504,
                                                      512,
                                                      520,
                                                      544,
                                                      551,
                                                      552,
                                                      553,
                                                      560,
                                                      1000,
                                                      1024,
                                                      1025,
                                                      2048,
                                                      4095,
                                                      4096,
                                                      4097,
                                                      8192,
                                                      8193,
                                                      16383,
                                                      16384,
                                                      16385,
                                                      32768,
                                                      32769,
                                                      65535,
                                                      65536,
                                                      65537,
                                                      131072,
                                                      262143,
                                                      262144,
                                                      262145,
                                                      524288,
                                                      1u << 20,
                                                      (1u << 20) + 1,
                                                      2u << 20,
                                                      4u << 20,
                                                      16u << 20,
                                                      (16u << 20) + 8,
                                                      20u << 20};
    const auto end = std::upper_bound(kEdges.begin(), kEdges.end(), most);
    const auto known = static_cast<std::uint64_t>(end - kEdges.begin());
    switch (random_.between(0, 9)) {
        case 0:
            return random_.below(most + 1);
        case 1:
            return std::min(most, random_.below(2049));
        case 2:
            return std::min(most, 496 + random_.below(65));  // what tiny lines end with
        case 3:
        case 4:
            return kEdges[known - 1 - random_.below(std::min<std::uint64_t>(known, 8))];
        default:
            return kEdges[random_.below(known)];
    }
}

// ---- Buffers ------------------------------------------------------------------------------------

bool Generator::allocate(int rank, Slab slab, std::uint64_t bytes, std::uint64_t alignment,
                         int operation, Buffer& buffer) {
    auto& live = rank_at(rank).live;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    for (const Interval& interval : live) {
        if (interval.slab == slab) taken.emplace_back(interval.offset, interval.bytes);
    }
    taken.emplace_back(program_.slab_bytes, 0);
    std::sort(taken.begin(), taken.end());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;  // first place, number of places
    std::uint64_t from = 0;
    for (const auto& [offset, length] : taken) {
        const std::uint64_t first = (from + alignment - 1) / alignment * alignment;
        if (first + bytes <= offset) {
            gaps.emplace_back(first, (offset - bytes - first) / alignment + 1);
        }
        from = std::max(from, offset + length);
    }
    if (gaps.empty()) return false;
    const auto& [first, places] = random_.pick(gaps);
    buffer = {slab, first + random_.below(places) * alignment};
    if (bytes != 0) live.push_back({slab, buffer.offset, bytes, operation});
    return true;
}

Buffer Generator::place(int rank, std::uint64_t bytes, std::uint64_t element, int operation) {
    if (bytes == 0 && random_.chance(50)) return {};
    Slab slab = random_.chance(50) ? Slab::kArena : Slab::kPrivate;
    if (placement_ == 1 && !random_.chance(10)) slab = Slab::kArena;
    if (placement_ == 2 && !random_.chance(10)) slab = Slab::kPrivate;
    static const std::vector<std::uint64_t> kAlignments = {1, 1, 64, 64, 4096};
    // Some at any address, as in packed records: no header asks for more.
    if (random_.chance(20)) element = 1;
    const std::uint64_t alignment = std::max(random_.pick(kAlignments), element);
    const Slab other = slab == Slab::kArena ? Slab::kPrivate : Slab::kArena;
    Buffer buffer;
    if (allocate(rank, slab, bytes, alignment, operation, buffer) ||
        allocate(rank, slab, bytes, element, operation, buffer) ||
        allocate(rank, other, bytes, element, operation, buffer)) {
        return buffer;
    }
    for (const int started : std::vector<int>(rank_at(rank).outstanding)) {
        if (started != operation) wait_for(rank, started);
    }
    if (!allocate(rank, slab, bytes, element, operation, buffer)) std::abort();
    return buffer;
}

Buffer Generator::place_in_arena(int rank, std::uint64_t bytes, std::uint64_t element,
                                 int operation) {
    Buffer buffer;
    if (allocate(rank, Slab::kArena, bytes, element, operation, buffer)) return buffer;
    drain(rank);
    if (!allocate(rank, Slab::kArena, bytes, element, operation, buffer)) std::abort();
    return buffer;
}

void Generator::release(int rank, int operation) {
    auto& live = rank_at(rank).live;
    live.erase(std::remove_if(live.begin(), live.end(),
                              [&](const Interval& each) { return each.operation == operation; }),
               live.end());
}

// Buffers of one rank: apart, or in place in one of the allowed forms.
void Generator::place_part(Operation& operation, int number, int member) {
    const int rank = operation.members[static_cast<std::size_t>(member)];
    Part& part = operation.parts[static_cast<std::size_t>(member)];
    const std::uint64_t element = fabricshm_dtype_size(operation.dtype);
    const std::uint64_t in = input_bytes(operation, member), out = output_bytes(operation, member);
    const std::uint64_t own = part_start(operation, member) * element;
    const bool in_place = random_.chance(35);
    switch (operation.kind) {
        case FABRICSHM_BARRIER:
            return;
        case FABRICSHM_ALLREDUCE:
        case FABRICSHM_REDUCE:
        case FABRICSHM_BROADCAST:
        case FABRICSHM_SCAN:
        case FABRICSHM_EXSCAN:
            if (!in_place) break;
            // Ranks that have no input, or no output, may name the same buffer there: it is
            // ignored.
            part.input = part.output = place(rank, std::max(in, out), element, number);
            return;
        case FABRICSHM_ALL_TO_ALL:
            if (!in_place || !operation.matrix.empty()) break;
            part.input = part.output = place(rank, in, element, number);
            return;
        case FABRICSHM_ALL_GATHER:
        case FABRICSHM_GATHER:
            if (!in_place || out == 0) break;
            part.output = place(rank, out, element, number);
            part.input = {part.output.slab, part.output.offset + own};
            return;
        case FABRICSHM_REDUCE_SCATTER:
        case FABRICSHM_SCATTER:
            if (!in_place || in == 0) break;
            part.input = place(rank, in, element, number);
            part.output = {part.input.slab, part.input.offset + own};
            return;
        default:
            break;
    }
    part.input = place(rank, in, element, number);
    part.output = place(rank, out, element, number);
}

void Generator::place_parts(Operation& operation, int number) {
    operation.parts.assign(operation.members.size(), {});
    for (int member = 0; member < operation.world(); ++member) {
        place_part(operation, number, member);
    }
}

// ---- Scripts ------------------------------------------------------------------------------------

int Generator::add(Operation operation) {
    program_.operations.push_back(std::move(operation));
    return static_cast<int>(program_.operations.size()) - 1;
}

void Generator::emit(int rank, Action::Type type, int operation) {
    Action action;
    action.type = type;
    action.operation = operation;
    if (random_.chance(15)) action.pause = 1u << random_.between(4, 14);
    action.poll = random_.chance(25);
    program_.scripts[static_cast<std::size_t>(rank)].push_back(action);
}

void Generator::emit_group(int rank, Action::Type type, int group, const std::vector<int>& victims,
                           const std::vector<int>& members) {
    Action action;
    action.type = type;
    action.group = group;
    action.victims = victims;
    action.members = members;
    program_.scripts[static_cast<std::size_t>(rank)].push_back(action);
}

void Generator::run_or_start(int rank, int operation, int start_chance) {
    auto& outstanding = rank_at(rank).outstanding;
    if (outstanding.size() < kMaxOutstanding && random_.chance(start_chance)) {
        emit(rank, Action::Type::kStart, operation);
        outstanding.push_back(operation);
        return;
    }
    emit(rank, Action::Type::kRun, operation);
    release(rank, operation);
}

void Generator::wait_for(int rank, int operation) {
    auto& outstanding = rank_at(rank).outstanding;
    const auto found = std::find(outstanding.begin(), outstanding.end(), operation);
    if (found == outstanding.end()) return;
    outstanding.erase(found);
    emit(rank, Action::Type::kWait, operation);
    release(rank, operation);
}

void Generator::wait_some(int rank, int percent) {
    std::vector<int> outstanding = rank_at(rank).outstanding;
    random_.shuffle(outstanding);
    for (const int operation : outstanding) {
        if (random_.chance(percent)) wait_for(rank, operation);
    }
}

void Generator::drain(int rank) {
    wait_some(rank, 100);
}

// ---- Collectives --------------------------------------------------------------------------------

Operation Generator::new_operation(int group) {
    Operation operation;
    operation.group = group;
    operation.members = group_at(group).members;
    operation.data = random_.next();
    operation.dtype = static_cast<fabricshm_dtype>(random_.between(0, FABRICSHM_F8_E5M2));
    operation.values = random_.chance(50) ? Values::kBits : Values::kNormal;
    return operation;
}

bool is_byte_float(fabricshm_dtype type) {
    return type == FABRICSHM_F8_E4M3 || type == FABRICSHM_F8_E5M2;
}

bool is_float(fabricshm_dtype type) {
    return type <= FABRICSHM_BF16 || is_byte_float(type);
}

// One that the type and the kind take.
void Generator::choose_op(Operation& operation) {
    const int last = is_float(operation.dtype) ? FABRICSHM_PROD : FABRICSHM_LXOR;
    const bool has_index =
        operation.dtype >= FABRICSHM_F64_INT && operation.dtype <= FABRICSHM_I64_INT;
    const bool scans = operation.kind == FABRICSHM_SCAN || operation.kind == FABRICSHM_EXSCAN;
    do {
        operation.op = static_cast<fabricshm_op>(
            has_index ? random_.between(FABRICSHM_MINLOC, FABRICSHM_MAXLOC)
                      : random_.between(0, last));
    } while (scans && operation.op == FABRICSHM_AVG);
}

void Generator::choose_kind(Operation& operation) {
    static const std::vector<fabricshm_kind> kKinds = {
        FABRICSHM_ALLREDUCE,  FABRICSHM_ALLREDUCE,  FABRICSHM_ALLREDUCE, FABRICSHM_REDUCE_SCATTER,
        FABRICSHM_ALL_GATHER, FABRICSHM_ALL_GATHER, FABRICSHM_BROADCAST, FABRICSHM_BROADCAST,
        FABRICSHM_REDUCE,     FABRICSHM_GATHER,     FABRICSHM_SCATTER,   FABRICSHM_ALL_TO_ALL,
        FABRICSHM_BARRIER,    FABRICSHM_SCAN,       FABRICSHM_SCAN,      FABRICSHM_EXSCAN};
    operation.kind = random_.pick(kKinds);
    choose_op(operation);
    operation.root = random_.between(0, operation.world() - 1);
    if (random_.chance(12)) operation.trigger = FABRICSHM_SYNC;
    if (random_.chance(20)) {
        // ring and host are for allreduce.
        static const std::vector<fabricshm_algorithm> kForced = {
            FABRICSHM_FLAT, FABRICSHM_DIRECT, FABRICSHM_STAGED, FABRICSHM_RING, FABRICSHM_HOST};
        operation.algorithm = kForced[random_.below(operation.kind == FABRICSHM_ALLREDUCE ? 5 : 2)];
    }
}

void Generator::choose_values(Operation& operation) {
    const bool ring =
        operation.algorithm == FABRICSHM_RING || (operation.algorithm == FABRICSHM_AUTO && exact_);
    const bool ordered = operation.op == FABRICSHM_SUM || operation.op == FABRICSHM_AVG ||
                         operation.op == FABRICSHM_PROD;
    if (operation.kind == FABRICSHM_ALLREDUCE && ring && ordered && is_float(operation.dtype)) {
        operation.values = Values::kSmall;
        // Not even sums of small numbers are exact in 8 bits; the least of them is.
        if (is_byte_float(operation.dtype)) operation.op = FABRICSHM_MIN;
    }
}

// One part, and with it each buffer, has up to `most` bytes.
void Generator::choose_counts(Operation& operation, std::uint64_t most) {
    const std::uint64_t element = fabricshm_dtype_size(operation.dtype);
    const auto world = static_cast<std::uint64_t>(operation.world());
    const bool parts = operation.kind != FABRICSHM_ALLREDUCE &&
                       operation.kind != FABRICSHM_BROADCAST &&
                       operation.kind != FABRICSHM_REDUCE && operation.kind != FABRICSHM_SCAN &&
                       operation.kind != FABRICSHM_EXSCAN;
    const std::uint64_t most_part = parts ? most / world : most;
    const auto elements = [&] { return choose_bytes(most_part) / element; };
    operation.count = elements();
    if (!parts || !random_.chance(40)) return;
    const auto uneven = [&](std::vector<std::uint64_t>& counts) {
        for (std::uint64_t i = 0; i < world; ++i) {
            counts.push_back(random_.chance(25)   ? 0
                             : random_.chance(50) ? elements()
                                                  : operation.count);
        }
    };
    if (operation.kind != FABRICSHM_ALL_TO_ALL) return uneven(operation.counts);
    operation.matrix.resize(world);
    for (auto& row : operation.matrix) uneven(row);
}

Operation Generator::new_collective(int group, std::uint64_t most) {
    Operation operation = new_operation(group);
    choose_kind(operation);
    if (operation.kind != FABRICSHM_BARRIER) choose_counts(operation, most);
    choose_values(operation);
    return operation;
}

void Generator::collective(int group) {
    // A burst of calls of one kind and size is what programs do, and what reuses routes.
    Operation first = new_collective(group, most_bytes_);
    const int repeats = random_.chance(70) ? 1 : random_.between(2, 12);
    for (int i = 0; i < repeats; ++i) {
        const int number = add(first);
        at(number).data = random_.next();
        if (random_.chance(30)) {
            at(number).root = random_.between(0, first.world() - 1);
        }
        Operation placed = at(number);
        place_parts(placed, number);
        at(number) = placed;
        const int start_chance = random_.chance(60) ? 0 : random_.between(10, 100);
        for (const int rank : first.members) run_or_start(rank, number, start_chance);
    }
    for (const int rank : first.members) wait_some(rank, 30);
}

void Generator::synchronise(int group, int companion) {
    Operation operation = new_operation(group);
    operation.companion = companion;
    operation.kind = FABRICSHM_BARRIER;
    if (random_.chance(30)) {
        operation.kind = FABRICSHM_ALLREDUCE;
        operation.dtype = FABRICSHM_I64;
        operation.count = 1;
    }
    const int number = add(operation);
    place_parts(operation, number);
    at(number) = operation;
    for (const int rank : operation.members) run_or_start(rank, number, 0);
}

// All ranks name one output in the arena. What its writer stores there afterwards must stay.
void Generator::shared_output(int group) {
    Operation operation = new_operation(group);
    static const std::vector<fabricshm_kind> kKinds = {FABRICSHM_ALLREDUCE, FABRICSHM_BROADCAST,
                                                       FABRICSHM_ALL_GATHER};
    operation.kind = random_.pick(kKinds);
    choose_op(operation);
    operation.root = random_.between(0, operation.world() - 1);
    operation.shared = true;
    if (random_.chance(20)) operation.algorithm = FABRICSHM_DIRECT;
    if (random_.chance(12)) operation.trigger = FABRICSHM_SYNC;
    choose_counts(operation, std::min(most_bytes_, group_at(group).common_bytes / 2));
    choose_values(operation);
    operation.readers = random_.chance(50) ? Readers::kOne : Readers::kAll;
    operation.writer = operation.kind == FABRICSHM_BROADCAST && random_.chance(60)
                           ? operation.root
                           : random_.between(0, operation.world() - 1);

    const int number = add(operation);
    operation.parts.assign(operation.members.size(), {});
    const std::uint64_t element = fabricshm_dtype_size(operation.dtype);
    const std::uint64_t bytes = output_bytes(operation, 0);
    const std::uint64_t room = group_at(group).common_bytes - bytes;
    const Buffer output{Slab::kCommon, (group_at(group).common_first + 63) / 64 * 64 +
                                           random_.below(room / 2 / 64 + 1) * 64 +
                                           element * random_.below(4)};
    const int in_place = random_.between(-1, operation.world() - 1);
    // A line that two hosts write keeps the words of one (docs/visibility.md).
    bool own_parts = true;
    for (int member = 0; limits_.hosts && member < operation.world(); ++member) {
        const std::uint64_t start = output.offset + part_start(operation, member) * element;
        own_parts = own_parts && start % 64 == 0;
    }
    for (int member = 0; member < operation.world(); ++member) {
        Part& part = operation.parts[static_cast<std::size_t>(member)];
        const int rank = operation.members[static_cast<std::size_t>(member)];
        part.output = output;
        if (operation.kind == FABRICSHM_ALL_GATHER && own_parts && random_.chance(40)) {
            part.input = {Slab::kCommon, output.offset + part_start(operation, member) * element};
        } else if ((operation.kind == FABRICSHM_BROADCAST && in_place >= 0) ||
                   (operation.kind == FABRICSHM_ALLREDUCE && member == in_place)) {
            part.input = output;
        } else {
            part.input = place_in_arena(rank, input_bytes(operation, member), element, number);
        }
    }
    at(number) = operation;
    const int start_chance = random_.chance(70) ? 0 : 50;
    for (const int rank : operation.members) run_or_start(rank, number, start_chance);
    for (const int rank : operation.members) wait_for(rank, number);
    const int writer = operation.members[static_cast<std::size_t>(operation.writer)];
    if (operation.readers == Readers::kAll) synchronise(group, number);
    // Hosts that share no caches would have to clean theirs before another one writes there.
    if (!limits_.hosts) {
        emit(writer, Action::Type::kOverwrite, number);
        synchronise(group, number);
        for (const int rank : operation.members) emit(rank, Action::Type::kInspect, number);
    }
    // The next one may write its input here.
    synchronise(group, number);
}

// ---- Messages -----------------------------------------------------------------------------------

int Generator::new_message(int group, int sender, int receiver, std::uint64_t most, int tag) {
    Operation operation = new_operation(group);
    operation.kind = FABRICSHM_SEND;
    operation.values = Values::kBits;
    operation.count = choose_bytes(most) / fabricshm_dtype_size(operation.dtype);
    operation.sender = sender;
    operation.receiver = receiver;
    operation.tag = tag;
    operation.parts.resize(2);
    return add(operation);
}

// Each rank sends several messages to some others, and only then receives what was sent to it.
void Generator::send_then_receive(int group) {
    const int world = static_cast<int>(group_at(group).members.size());
    static const std::vector<int> kTags = {0, 0, 0, 1, 7, -3, INT_MAX, INT_MIN};
    const int shift = random_.between(1, world - 1);
    const bool all = random_.chance(30);
    const int messages = random_.between(
        1, random_.chance(50) ? std::min(3, limits_.most_ahead) : limits_.most_ahead);
    const std::uint64_t most = std::min(
        {kEagerBytes, most_bytes_ / 4, kAheadBytes / static_cast<std::uint64_t>(messages)});
    std::vector<std::vector<int>> inbox(static_cast<std::size_t>(world));
    for (int sender = 0; sender < world; ++sender) {
        for (int receiver = 0; receiver < world; ++receiver) {
            if (sender == receiver) continue;
            if (all ? random_.chance(30) : receiver != (sender + shift) % world) continue;
            for (int i = 0; i < messages; ++i) {
                const int number = new_message(group, sender, receiver, most, random_.pick(kTags));
                const int rank = at(number).members[static_cast<std::size_t>(sender)];
                const Buffer input = place(rank, input_bytes(at(number), sender),
                                           fabricshm_dtype_size(at(number).dtype), number);
                at(number).parts[0].input = input;
                run_or_start(rank, number, 10);
                inbox[static_cast<std::size_t>(receiver)].push_back(number);
            }
        }
    }
    if (random_.chance(20)) synchronise(group);
    for (int receiver = 0; receiver < world; ++receiver) {
        const int rank = group_at(group).members[static_cast<std::size_t>(receiver)];
        auto& messages_in = inbox[static_cast<std::size_t>(receiver)];
        // In the order sent within a pair and a tag, else in any.
        std::vector<int> order = messages_in;
        random_.shuffle(order);
        const auto same_lane = [&](int a, int b) {
            return at(a).sender == at(b).sender && at(a).tag == at(b).tag;
        };
        for (std::size_t i = 0; i < order.size(); ++i) {
            for (std::size_t k = i + 1; k < order.size(); ++k) {
                if (same_lane(order[i], order[k]) && order[k] < order[i]) {
                    std::swap(order[i], order[k]);
                }
            }
        }
        for (const int number : order) {
            at(number).parts[1].output = place(rank, output_bytes(at(number), receiver),
                                               fabricshm_dtype_size(at(number).dtype), number);
            run_or_start(rank, number, 10);
        }
        drain(rank);
    }
    for (const int rank : group_at(group).members) drain(rank);
}

// Each rank starts one side, runs the other, and waits for what it started; of any size.
void Generator::started_messages(int group) {
    const int world = static_cast<int>(group_at(group).members.size());
    const int shift = random_.between(1, world - 1);
    const int messages = random_.between(1, 3);
    const bool receives_first = random_.chance(50);
    std::vector<int> numbers;
    for (int sender = 0; sender < world; ++sender) {
        for (int i = 0; i < messages; ++i) {
            numbers.push_back(
                new_message(group, sender, (sender + shift) % world, most_bytes_ / 4, i));
        }
    }
    for (const bool receives : {receives_first, !receives_first}) {
        for (const int number : numbers) {
            const int member = receives ? at(number).receiver : at(number).sender;
            const int rank = at(number).members[static_cast<std::size_t>(member)];
            // The two sides of a message are in the scripts of different ranks.
            Buffer buffer = place(rank, input_bytes(at(number), at(number).sender),
                                  fabricshm_dtype_size(at(number).dtype), number);
            (receives ? at(number).parts[1].output : at(number).parts[0].input) = buffer;
            if (receives == receives_first) {
                emit(rank, Action::Type::kStart, number);
                rank_at(rank).outstanding.push_back(number);
            } else {
                run_or_start(rank, number, 0);
            }
        }
    }
    for (const int rank : group_at(group).members) drain(rank);
}

// One after the other, each as large as may be.
void Generator::ordered_messages(int group) {
    const int world = static_cast<int>(group_at(group).members.size());
    for (int i = random_.between(1, 4); i > 0; --i) {
        const int sender = random_.between(0, world - 1);
        const int receiver = (sender + random_.between(1, world - 1)) % world;
        const int number = new_message(group, sender, receiver, most_bytes_, 3);
        for (const int member : {sender, receiver}) {
            const int rank = at(number).members[static_cast<std::size_t>(member)];
            Buffer buffer = place(rank, input_bytes(at(number), sender),
                                  fabricshm_dtype_size(at(number).dtype), number);
            (member == sender ? at(number).parts[0].input : at(number).parts[1].output) = buffer;
            run_or_start(rank, number, 30);
        }
    }
    for (const int rank : group_at(group).members) wait_some(rank, 50);
}

// Several ranks send to one, which takes them as they come. The tag is used once, since a message
// of a later exchange could be taken for one of this.
void Generator::any_peer(int group) {
    const int world = static_cast<int>(group_at(group).members.size());
    const int receiver = random_.between(0, world - 1);
    const int pool = static_cast<int>(program_.pools.size());
    const int tag = 1'000'000 + pool;
    const int messages = random_.between(1, std::min(4, limits_.most_ahead));
    program_.pools.emplace_back();
    const int model = new_message(group, (receiver + 1) % world, receiver,
                                  std::min(kEagerBytes, most_bytes_ / 8), tag);
    at(model).pool = pool;
    std::vector<int> numbers;
    for (int sender = 0; sender < world; ++sender) {
        if (sender == receiver || (sender != (receiver + 1) % world && random_.chance(30)))
            continue;
        for (int i = 0; i < messages; ++i) {
            int number = model;
            if (sender != at(model).sender || i != 0) {
                Operation copy = at(model);  // all have the same size
                copy.sender = sender;
                copy.data = random_.next();
                number = add(copy);
            }
            numbers.push_back(number);
            const int rank = at(number).members[static_cast<std::size_t>(sender)];
            const Buffer input = place(rank, input_bytes(at(number), sender),
                                       fabricshm_dtype_size(at(number).dtype), number);
            at(number).parts[0].input = input;
            run_or_start(rank, number, 20);
        }
    }
    program_.pools.back() = numbers;
    const int rank = at(model).members[static_cast<std::size_t>(receiver)];
    for (const int number : numbers) {
        at(number).parts[1].output = place(rank, output_bytes(at(number), receiver),
                                           fabricshm_dtype_size(at(number).dtype), number);
        run_or_start(rank, number, 0);
    }
    for (const int member : group_at(group).members) wait_some(member, 60);
}

void Generator::messages(int group) {
    if (group_at(group).members.size() < 2) return;
    // So that no buffer of a message has to wait for one that its receiver asks for later.
    for (const int rank : group_at(group).members) drain(rank);
    switch (random_.between(0, 5)) {
        case 0:
        case 1:
        case 2:
            return send_then_receive(group);
        case 3:
            return started_messages(group);
        case 4:
            return ordered_messages(group);
        default:
            return any_peer(group);
    }
}

// ---- Deaths -------------------------------------------------------------------------------------

std::vector<int> ranks_in(const std::vector<int>& members, const std::vector<int>& world_ranks) {
    std::vector<int> found;
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (std::count(world_ranks.begin(), world_ranks.end(), members[i]) != 0) {
            found.push_back(static_cast<int>(i));
        }
    }
    return found;
}

std::vector<int> rest_of(const std::vector<int>& members, const std::vector<int>& gone) {
    std::vector<int> rest;
    for (const int member : members) {
        if (std::count(gone.begin(), gone.end(), member) == 0) rest.push_back(member);
    }
    return rest;
}

// One or two ranks die before, in, or after starting a few operations of `group`. All groups that
// they were in break, and go on without them.
void Generator::deaths(int group) {
    std::vector<int> gone;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) drain(static_cast<int>(rank));
    const std::vector<int> members = group_at(group).members;
    if (members.size() < 3) return;
    gone.push_back(random_.pick(members));
    if (members.size() > 4 && random_.chance(30)) {
        const int second = random_.pick(members);
        if (second != gone[0]) gone.push_back(second);
    }
    const std::vector<int> victims = ranks_in(members, gone);
    // Else a rank that is slow would find the group broken in an operation that all others have
    // behind them. One that is slow in the barrier itself may.
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        if (ranks_in(groups_[i].members, gone).empty()) continue;
        Operation barrier = new_operation(static_cast<int>(i));
        barrier.victims = ranks_in(groups_[i].members, gone);
        barrier.parts.resize(barrier.members.size());
        const int number = add(barrier);
        for (const int rank : barrier.members) emit(rank, Action::Type::kRun, number);
    }

    std::vector<int> numbers;
    std::vector<bool> dead(ranks_.size());
    for (int i = random_.between(0, 3); i > 0; --i) {
        Operation operation = new_collective(group, most_bytes_ / 8);
        operation.victims = victims;
        const int number = add(operation);
        place_parts(operation, number);
        at(number) = operation;
        numbers.push_back(number);
        for (const int rank : members) {
            if (dead[static_cast<std::size_t>(rank)]) continue;
            const bool victim = std::count(gone.begin(), gone.end(), rank) != 0;
            // A victim starts it and is gone some time later; or it never calls it.
            if (victim && random_.chance(30)) {
                dead[static_cast<std::size_t>(rank)] = true;
                continue;
            }
            const bool starts = victim || random_.chance(40);
            emit(rank, starts ? Action::Type::kStart : Action::Type::kRun, number);
            if (starts) rank_at(rank).outstanding.push_back(number);
        }
    }
    for (const int rank : gone) {
        emit(rank, Action::Type::kKill, -1);
        rank_at(rank).alive = false;
        rank_at(rank).outstanding.clear();
        rank_at(rank).live.clear();
    }
    for (const int rank : rest_of(members, gone)) {
        for (const int number : std::vector<int>(rank_at(rank).outstanding)) {
            wait_for(rank, number);
        }
    }
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        const auto number = static_cast<int>(i);
        const std::vector<int> old = groups_[i].members;
        const std::vector<int> rest = rest_of(old, gone);
        if (rest.size() == old.size()) continue;
        const bool shrinks = !rest.empty() && (i == 0 || random_.chance(80));
        for (const int rank : rest) {
            emit_group(rank, Action::Type::kProbe, number, ranks_in(old, gone), rest);
            emit_group(rank, shrinks ? Action::Type::kShrink : Action::Type::kQuiesce, number,
                       ranks_in(old, gone), rest);
            for (const int operation : numbers) {
                if (at(operation).group == number) release(rank, operation);
            }
        }
        groups_[i].members = shrinks ? rest : std::vector<int>{};
    }
}

// A rank leaves `group` and lives on.
void Generator::leaving(int group) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) drain(static_cast<int>(rank));
    const std::vector<int> old = group_at(group).members;
    if (old.size() < 2) return;
    synchronise(group);
    const std::vector<int> gone{random_.pick(old)};
    emit_group(gone[0], Action::Type::kLeave, group, {}, {});
    const std::vector<int> rest = rest_of(old, gone);
    for (const int rank : rest) {
        emit_group(rank, Action::Type::kProbe, group, ranks_in(old, gone), rest);
        emit_group(rank, Action::Type::kShrink, group, ranks_in(old, gone), rest);
    }
    group_at(group).members = rest;
}

// ---- The whole ----------------------------------------------------------------------------------

Program Generator::make() {
    choose_shape();
    choose_tuning();
    const int focus = random_.between(0, 9);  // some programs do one thing most of the time
    int deaths_left = limits_.deaths && random_.chance(30) ? random_.between(1, 2) : 0;
    for (int step = 0; step < steps_; ++step) {
        std::vector<int> usable;
        for (std::size_t i = 0; i < groups_.size(); ++i) {
            if (!groups_[i].members.empty()) usable.push_back(static_cast<int>(i));
        }
        const int group = random_.pick(usable);
        const int dice = random_.between(0, 99);
        if (deaths_left > 0 && dice < 300 / steps_) {
            --deaths_left;
            if (random_.chance(85)) {
                deaths(group);
            } else {
                leaving(group);
            }
        } else if (limits_.shared && dice < (focus == 0 ? 60 : 15)) {
            shared_output(group);
        } else if (limits_.messages && dice < (focus == 1 ? 70 : 30)) {
            messages(group);
        } else {
            collective(group);
        }
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            if (ranks_[rank].alive && random_.chance(3)) {
                emit(static_cast<int>(rank), Action::Type::kVerify, -1);
            }
        }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (!ranks_[rank].alive) continue;
        drain(static_cast<int>(rank));
        emit(static_cast<int>(rank), Action::Type::kVerify, -1);
    }
    return std::move(program_);
}

}  // namespace

Program make_program(std::uint64_t seed, const ProgramLimits& limits) {
    return Generator(seed, limits).make();
}

}  // namespace oracle
