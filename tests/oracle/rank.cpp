#include "tests/oracle/rank.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

#include "libfabricshm/os/futex.hpp"
#include "tests/oracle/model.hpp"

namespace oracle {

namespace {

constexpr std::uint64_t kGuard = 128;  // bytes next to a buffer that are compared with it
constexpr int kMaxShrinks = 20;

void spin(std::uint32_t turns) {
    for (std::uint32_t i = 0; i < turns; ++i) asm volatile("pause" ::: "memory");
}

// ---- Memory -------------------------------------------------------------------------------------

// A slab and what it must hold. What an operation under way may write is unknown until it is over.
class Memory {
  public:
    Memory(std::byte* bytes, std::uint64_t length, std::uint64_t seed)
        : bytes_(bytes), expected_(length) {
        make_junk(seed, length, expected_.data());
        std::memcpy(bytes_, expected_.data(), length);
    }

    std::byte* at(std::uint64_t offset) const { return bytes_ + offset; }
    std::byte* expected(std::uint64_t offset) { return expected_.data() + offset; }
    /// Writes what is expected there into the slab.
    void write(std::uint64_t offset, std::uint64_t length) {
        if (length != 0) std::memcpy(at(offset), expected(offset), length);
    }
    void set_unknown(int operation, std::uint64_t offset, std::uint64_t length) {
        if (length != 0) unknown_.insert({offset, {operation, length}});
    }
    void set_known(int operation) {
        for (auto it = unknown_.begin(); it != unknown_.end();) {
            it = it->second.operation == operation ? unknown_.erase(it) : std::next(it);
        }
    }
    /// The first byte of [first, last) that is known and wrong; `last` when there is none.
    std::uint64_t first_wrong(std::uint64_t first, std::uint64_t last) const {
        last = std::min<std::uint64_t>(last, expected_.size());
        std::uint64_t from = first;
        for (const auto& [offset, range] : unknown_) {
            if (offset + range.length <= from || offset >= last) continue;
            if (offset > from) {
                const std::uint64_t wrong = compare(from, offset);
                if (wrong != offset) return wrong;
            }
            from = offset + range.length;
        }
        return from < last ? compare(from, last) : last;
    }
    std::uint64_t size() const { return expected_.size(); }

  private:
    struct Range {
        int operation;
        std::uint64_t length;
    };

    std::uint64_t compare(std::uint64_t first, std::uint64_t last) const {
        if (std::memcmp(bytes_ + first, expected_.data() + first, last - first) == 0) return last;
        const std::byte* begin = bytes_ + first;
        return first +
               static_cast<std::uint64_t>(
                   std::mismatch(begin, begin + (last - first), expected_.data() + first).first -
                   begin);
    }

    std::byte* bytes_;
    std::vector<std::byte> expected_;
    std::multimap<std::uint64_t, Range> unknown_;  // by offset
};

// ---- The player ---------------------------------------------------------------------------------

class RankPlayer {
  public:
    RankPlayer(const Program& program, int rank, const PlayOptions& options, Board& board)
        : program_(program), rank_(rank), options_(options), board_(board) {}

    bool open(std::uint64_t run);
    bool play();
    void close() { fabricshm_session_close(session_); }

  private:
    struct Started {
        fabricshm_request* request;
        fabricshm_call call;
        std::vector<std::uint64_t> counts, recv_counts;
    };
    // What is known of a group that this rank is in.
    struct Group {
        fabricshm_group* handle = nullptr;
        std::vector<int> members;
        bool named = false;        // a call has ended with EPEER and a rank that is gone
        std::vector<int> unknown;  // operations that failed: their outputs are undefined
    };

    bool do_action(const Action& action);
    bool run(int number);
    bool start(int number);
    bool wait(int number, bool poll);
    bool overwrite(int number);
    bool inspect(int number);
    bool verify();
    bool probe(const Action& action);
    bool shrink(const Action& action);
    bool quiesce(const Action& action);

    // The two halves of an operation.
    fabricshm_call prepare(int number, Started& started);
    bool finish(int number, int code, int peer);
    bool check_output(int number, const Operation& operation, int member, const Buffer& buffer);
    bool check_common(int number, const std::vector<std::byte>& expected, const char* what);
    int source_of(const Operation& operation, int peer, const Buffer& buffer);
    void write_input(const Operation& operation, int member, const Buffer& buffer);
    void overwrite_buffer(int number, const Buffer& buffer, std::uint64_t bytes);
    bool check_known(const char* what, Slab slab, std::uint64_t first, std::uint64_t last);
    bool failed_for(Group& group, int number, int code, const std::vector<int>& victims);
    bool join(std::uint64_t run);
    bool take_memory();

    const Operation& operation_at(int number) const {
        return program_.operations[static_cast<std::size_t>(number)];
    }
    Memory& memory(Slab slab) { return slab == Slab::kArena ? *arena_memory_ : *private_memory_; }
    std::byte* address(const Buffer& buffer);
    // Of this rank in the operation, in the numbering of its parts.
    const Part& own_part(const Operation& operation) const;
    std::uint64_t own_seed(std::uint64_t what) const {
        return mix(mix(program_.seed, static_cast<std::uint64_t>(rank_)), what);
    }
    void moved() { board_.lines[rank_].moves.fetch_add(1, std::memory_order_relaxed); }
    bool wrong(const char* format, ...) __attribute__((format(printf, 2, 3)));

    const Program& program_;
    const int rank_;
    const PlayOptions& options_;
    Board& board_;
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    std::unique_ptr<Memory> arena_memory_, private_memory_;
    std::byte* common_ = nullptr;
    std::vector<Group> groups_;
    std::map<int, std::unique_ptr<Started>> started_;
    std::vector<bool> delivered_;  // messages of pools that this rank has received
    const Action* now_ = nullptr;
};

bool RankPlayer::wrong(const char* format, ...) {
    std::uint32_t none = 0;
    if (!board_.failed.compare_exchange_strong(none, 1)) return false;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::string what = now_ != nullptr ? describe(program_, *now_) : "start";
    std::snprintf(board_.text, sizeof board_.text, "rank %d, %s: %s", rank_,
                  what.substr(0, 500).c_str(), text);
    board_.failed.store(2);
    return false;
}

std::byte* RankPlayer::address(const Buffer& buffer) {
    if (buffer.slab == Slab::kNone) return nullptr;
    if (buffer.slab == Slab::kCommon) return common_ + buffer.offset;
    return memory(buffer.slab).at(buffer.offset);
}

const Part& RankPlayer::own_part(const Operation& operation) const {
    const int member = operation.group_rank(rank_);
    if (!operation.is_message()) return operation.parts[static_cast<std::size_t>(member)];
    return operation.parts[member == operation.sender ? 0 : 1];
}

// ---- Opening ------------------------------------------------------------------------------------

// The one that holds the common slab must not die.
int keeper_of(const Program& program) {
    for (int rank = 0; rank < program.world; ++rank) {
        const auto& script = program.scripts[static_cast<std::size_t>(rank)];
        if (script.empty() || script.back().type != Action::Type::kKill) return rank;
    }
    return 0;
}

bool RankPlayer::take_memory() {
    const auto take = [&]() -> std::byte* {
        if (program_.heap) {
            return static_cast<std::byte*>(fabricshm_alloc(arena_, program_.slab_bytes));
        }
        fabricshm_region region{};
        const int code = fabricshm_region_create(arena_, program_.slab_bytes, &region);
        return code == FABRICSHM_OK ? static_cast<std::byte*>(region.base) : nullptr;
    };
    std::byte* const own = take();
    if (own == nullptr) return wrong("no memory in the arena: %s", fabricshm_error_text());
    arena_memory_ = std::make_unique<Memory>(own, program_.slab_bytes, own_seed(1));
    void* memory = ::mmap(nullptr, program_.slab_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return wrong("no private memory");
    private_memory_ =
        std::make_unique<Memory>(static_cast<std::byte*>(memory), program_.slab_bytes, own_seed(2));
    auto* base = static_cast<std::byte*>(fabricshm_arena_base(arena_));
    if (rank_ == keeper_of(program_)) {
        std::byte* const common = take();
        if (common == nullptr) return wrong("no common memory: %s", fabricshm_error_text());
        board_.common_offset.store(static_cast<std::uint64_t>(common - base));
    }
    board_.ready.fetch_add(1);
    fabricshm::futex_wake(&board_.ready, INT_MAX);
    const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(options_.timeout_seconds);
    for (;;) {
        const std::uint32_t ready = board_.ready.load();
        if (ready == static_cast<std::uint32_t>(program_.world)) break;
        if (!fabricshm::futex_wait(&board_.ready, ready, deadline)) return wrong("others are late");
    }
    common_ = base + board_.common_offset.load();
    return true;
}

bool RankPlayer::join(std::uint64_t run) {
    groups_.resize(program_.groups.size());
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        const auto& members = program_.groups[i];
        const auto found = std::find(members.begin(), members.end(), rank_);
        if (found == members.end()) continue;
        const std::string name = "run" + std::to_string(run) + "." + std::to_string(i);
        const int code = fabricshm_group_join(
            arena_, name.c_str(), static_cast<int>(found - members.begin()),
            static_cast<int>(members.size()), FABRICSHM_TIMEOUT_DEFAULT, &groups_[i].handle);
        if (code != FABRICSHM_OK) return wrong("join %zu: %s", i, fabricshm_error_text());
        groups_[i].members = members;
        moved();
    }
    return true;
}

bool RankPlayer::open(std::uint64_t run) {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = options_.socket.c_str();
    options.timeout_ms = options_.timeout_seconds * 1000;
    if (fabricshm_session_open(&options, &session_) != FABRICSHM_OK ||
        fabricshm_arena_open(session_, kArenaName, 0, 0, &arena_) != FABRICSHM_OK) {
        return wrong("%s", fabricshm_error_text());
    }
    delivered_.resize(program_.operations.size());
    return take_memory() && join(run);
}

// ---- One operation ------------------------------------------------------------------------------

void RankPlayer::write_input(const Operation& operation, int member, const Buffer& buffer) {
    const std::uint64_t bytes = input_bytes(operation, member);
    if (buffer.slab == Slab::kNone || bytes == 0) return;
    if (buffer.slab == Slab::kCommon) {
        return make_input(operation, member, 0, bytes, common_ + buffer.offset);
    }
    make_input(operation, member, 0, bytes, memory(buffer.slab).expected(buffer.offset));
    memory(buffer.slab).write(buffer.offset, bytes);
}

fabricshm_call RankPlayer::prepare(int number, Started& started) {
    const Operation& operation = operation_at(number);
    const int member = operation.group_rank(rank_);
    const Part& part = own_part(operation);
    write_input(operation, member, part.input);
    const std::uint64_t out = output_bytes(operation, member);
    if (part.output.slab == Slab::kArena || part.output.slab == Slab::kPrivate) {
        memory(part.output.slab).set_unknown(number, part.output.offset, out);
    }

    fabricshm_call call =
        fabricshm_call_make(operation.kind, operation.dtype, operation.op, address(part.input),
                            address(part.output), operation.count);
    call.algorithm = operation.algorithm;
    call.trigger = operation.trigger;
    call.root = operation.root;
    if (operation.is_message()) {
        const bool sends = member == operation.sender;
        call.kind = sends ? FABRICSHM_SEND : FABRICSHM_RECV;
        call.peer = sends                 ? operation.receiver
                    : operation.pool >= 0 ? FABRICSHM_ANY_PEER
                                          : operation.sender;
        call.tag = operation.tag;
    }
    started.counts = operation.counts;
    if (!operation.matrix.empty()) {
        started.counts = operation.matrix[static_cast<std::size_t>(member)];
        for (const auto& row : operation.matrix) {
            started.recv_counts.push_back(row[static_cast<std::size_t>(member)]);
        }
    }
    if (!started.counts.empty()) call.counts = started.counts.data();
    if (!started.recv_counts.empty()) call.recv_counts = started.recv_counts.data();
    if (operation.shared) call.flags = FABRICSHM_SHARED_OUTPUT;
    return call;
}

// The call ended with an error in a group of which `victims` are dead or dying.
bool RankPlayer::failed_for(Group& group, int number, int code, const std::vector<int>& victims) {
    const int named = fabricshm_error_rank();
    const bool peer =
        code == FABRICSHM_EPEER && std::count(victims.begin(), victims.end(), named) != 0;
    // Broken by an earlier call, or by one that was started and is not waited for yet.
    const bool broken =
        code == FABRICSHM_EBROKEN &&
        (group.named || std::any_of(started_.begin(), started_.end(), [&](const auto& each) {
             return &groups_[static_cast<std::size_t>(operation_at(each.first).group)] == &group;
         }));
    if (!peer && !broken) {
        return wrong("%s, rank %d (%s) after the end of a rank", fabricshm_error_name(code), named,
                     fabricshm_error_text());
    }
    group.named = group.named || peer;
    if (number >= 0) group.unknown.push_back(number);
    return true;
}

// Which message of the pool came: from `peer`, or -1: the one whose bytes these are.
int RankPlayer::source_of(const Operation& operation, int peer, const Buffer& buffer) {
    std::vector<bool> seen(operation.members.size());
    std::vector<std::byte> bytes(output_bytes(operation, operation.receiver));
    for (const int number : program_.pools[static_cast<std::size_t>(operation.pool)]) {
        const Operation& candidate = operation_at(number);
        const auto sender = static_cast<std::size_t>(candidate.sender);
        // The first one of each sender that has not come: messages keep their order.
        if (delivered_[static_cast<std::size_t>(number)] || seen[sender]) continue;
        seen[sender] = true;
        if (peer >= 0 && candidate.sender != peer) continue;
        if (peer < 0 && !bytes.empty()) {
            make_output(candidate, candidate.receiver, bytes.data());
            if (std::memcmp(bytes.data(), address(buffer), bytes.size()) != 0) continue;
        }
        delivered_[static_cast<std::size_t>(number)] = true;
        return number;
    }
    return -1;
}

bool RankPlayer::check_known(const char* what, Slab slab, std::uint64_t first, std::uint64_t last) {
    Memory& slab_memory = memory(slab);
    last = std::min(last, slab_memory.size());
    const std::uint64_t at = slab_memory.first_wrong(first, last);
    if (at == last) return true;
    std::uint64_t count = 0;
    std::uint64_t end = at;
    for (std::uint64_t byte = at; byte < last; ++byte) {
        if (*slab_memory.at(byte) == *slab_memory.expected(byte)) continue;
        ++count;
        end = byte + 1;
    }
    std::uint64_t found = 0, expected = 0;
    const std::uint64_t some = std::min<std::uint64_t>(8, last - at);
    std::memcpy(&found, slab_memory.at(at), some);
    std::memcpy(&expected, slab_memory.expected(at), some);
    return wrong("%s: byte %" PRIu64 " of the buffer at %s+%" PRIu64
                 " is wrong, expected %016" PRIx64 ", found %016" PRIx64 " (little endian; %" PRIu64
                 " wrong bytes up to %" PRIu64 ")",
                 what, at - first, slab == Slab::kArena ? "arena" : "private", first, expected,
                 found, count, end - first);
}

bool RankPlayer::check_common(int number, const std::vector<std::byte>& expected,
                              const char* what) {
    const std::byte* found = address(own_part(operation_at(number)).output);
    const auto at = std::mismatch(expected.begin(), expected.end(), found).first - expected.begin();
    if (static_cast<std::size_t>(at) == expected.size()) return true;
    return wrong("%s: byte %td of %zu is wrong, expected %02x, found %02x", what, at,
                 expected.size(), static_cast<unsigned>(expected[static_cast<std::size_t>(at)]),
                 static_cast<unsigned>(found[at]));
}

bool RankPlayer::check_output(int number, const Operation& operation, int member,
                              const Buffer& buffer) {
    const std::uint64_t bytes = output_bytes(operation, member);
    if (buffer.slab == Slab::kCommon) {
        if (operation.readers == Readers::kOne && member != operation.writer) return true;
        std::vector<std::byte> expected(bytes);
        make_output(operation, member, expected.data());
        return check_common(number, expected, "shared output");
    }
    if (buffer.slab == Slab::kNone) return true;
    make_output(operation, member, memory(buffer.slab).expected(buffer.offset));
    memory(buffer.slab).set_known(number);
    return check_known("output", buffer.slab, buffer.offset, buffer.offset + bytes) &&
           check_known("after the output", buffer.slab, buffer.offset + bytes,
                       buffer.offset + bytes + kGuard) &&
           check_known("before the output", buffer.slab,
                       buffer.offset - std::min(kGuard, buffer.offset), buffer.offset);
}

void RankPlayer::overwrite_buffer(int number, const Buffer& buffer, std::uint64_t bytes) {
    if (buffer.slab != Slab::kArena && buffer.slab != Slab::kPrivate) return;
    make_junk(own_seed(static_cast<std::uint64_t>(number) * 4 + (bytes & 3)), bytes,
              memory(buffer.slab).expected(buffer.offset));
    memory(buffer.slab).write(buffer.offset, bytes);
}

bool RankPlayer::finish(int number, int code, int peer) {
    const Operation& operation = operation_at(number);
    const int member = operation.group_rank(rank_);
    const Part& part = own_part(operation);
    Group& group = groups_[static_cast<std::size_t>(operation.group)];
    if (code != FABRICSHM_OK) {
        if (operation.victims.empty()) {
            return wrong("%s, rank %d: %s", fabricshm_error_name(code), fabricshm_error_rank(),
                         fabricshm_error_text());
        }
        if (!failed_for(group, number, code, operation.victims)) return false;
        // The input may be written at once.
        if (part.input.slab != part.output.slab || part.input.offset != part.output.offset) {
            const std::uint64_t in = input_bytes(operation, member);
            const bool inside =
                part.output.slab == part.input.slab &&
                part.output.offset < part.input.offset + in &&
                part.input.offset < part.output.offset + output_bytes(operation, member);
            if (!inside) overwrite_buffer(number, part.input, in);
        }
        return true;
    }
    const bool pooled = operation.pool >= 0 && member == operation.receiver;
    const int source = pooled ? source_of(operation, peer, part.output) : number;
    if (source < 0) return wrong("from rank %d came what no rank of the pool sent next", peer);
    const std::uint64_t in = input_bytes(operation, member);
    const std::uint64_t out = output_bytes(operation, member);
    if (!check_output(number, operation_at(source), member, part.output)) return false;
    if (part.input.slab == Slab::kArena || part.input.slab == Slab::kPrivate) {
        if (!check_known("input", part.input.slab, part.input.offset, part.input.offset + in)) {
            return false;
        }
    }
    // At once, as the interface allows.
    overwrite_buffer(number, part.input, in);
    if (part.output.slab != Slab::kCommon) overwrite_buffer(number, part.output, out);
    return true;
}

// ---- Actions ------------------------------------------------------------------------------------

bool RankPlayer::run(int number) {
    const Operation& operation = operation_at(number);
    Started started;
    const fabricshm_call call = prepare(number, started);
    const int code =
        fabricshm_run(groups_[static_cast<std::size_t>(operation.group)].handle, &call);
    return finish(number, code, -1);
}

bool RankPlayer::start(int number) {
    const Operation& operation = operation_at(number);
    auto started = std::make_unique<Started>();
    started->call = prepare(number, *started);
    const int code = fabricshm_start(groups_[static_cast<std::size_t>(operation.group)].handle,
                                     &started->call, &started->request);
    // The counts are copied by the call.
    std::fill(started->counts.begin(), started->counts.end(), ~std::uint64_t{0});
    std::fill(started->recv_counts.begin(), started->recv_counts.end(), ~std::uint64_t{0});
    if (code != FABRICSHM_OK) return finish(number, code, -1);
    started_[number] = std::move(started);
    return true;
}

bool RankPlayer::wait(int number, bool poll) {
    const auto found = started_.find(number);
    if (found == started_.end()) return true;  // it failed at its start
    fabricshm_request* const request = found->second->request;
    started_.erase(found);
    const Operation& operation = operation_at(number);
    const bool pooled = operation.pool >= 0 && operation.group_rank(rank_) == operation.receiver;
    int peer = -1;
    if (poll || pooled) {
        // Ends by the deadline of the call, or by the watchdog.
        while (fabricshm_test(request) == 0) ::sched_yield();
        if (pooled) peer = fabricshm_request_peer(request);
    }
    return finish(number, fabricshm_wait(request), peer);
}

std::vector<std::byte> common_junk(const Program& program, int number, std::uint64_t bytes) {
    std::vector<std::byte> junk(bytes);
    make_junk(mix(program.seed, static_cast<std::uint64_t>(number) + 1000), bytes, junk.data());
    return junk;
}

bool RankPlayer::overwrite(int number) {
    const Operation& operation = operation_at(number);
    const auto junk = common_junk(program_, number, output_bytes(operation, operation.writer));
    if (!junk.empty()) std::memcpy(address(own_part(operation).output), junk.data(), junk.size());
    return true;
}

bool RankPlayer::inspect(int number) {
    const Operation& operation = operation_at(number);
    return check_common(number,
                        common_junk(program_, number, output_bytes(operation, operation.writer)),
                        "the shared output was overwritten after the call had returned, but");
}

bool RankPlayer::verify() {
    return check_known("all of the memory in the arena", Slab::kArena, 0, program_.slab_bytes) &&
           check_known("all of the private memory", Slab::kPrivate, 0, program_.slab_bytes);
}

bool RankPlayer::probe(const Action& action) {
    Group& group = groups_[static_cast<std::size_t>(action.group)];
    fabricshm_call call =
        fabricshm_call_make(FABRICSHM_BARRIER, FABRICSHM_U8, FABRICSHM_SUM, nullptr, nullptr, 0);
    const int code = fabricshm_run(group.handle, &call);
    if (code == FABRICSHM_OK) return wrong("a barrier completed without a rank that is gone");
    if (!failed_for(group, -1, code, action.victims)) return false;
    return group.named || wrong("no call has named the rank that is gone");
}

bool RankPlayer::shrink(const Action& action) {
    Group& group = groups_[static_cast<std::size_t>(action.group)];
    fabricshm_group* survivors = nullptr;
    int code = FABRICSHM_EINTERNAL;
    for (int attempt = 0; attempt < kMaxShrinks; ++attempt) {
        code = fabricshm_group_shrink(group.handle, FABRICSHM_TIMEOUT_DEFAULT, &survivors);
        moved();
        // Another one may die meanwhile, where several do.
        if (code != FABRICSHM_EPEER && code != FABRICSHM_EBROKEN) break;
        if (action.victims.size() < 2) break;
    }
    if (code != FABRICSHM_OK) {
        return wrong("shrink: %s, rank %d: %s", fabricshm_error_name(code), fabricshm_error_rank(),
                     fabricshm_error_text());
    }
    fabricshm_group_leave(group.handle);
    const auto expected = static_cast<int>(
        std::find(action.members.begin(), action.members.end(), rank_) - action.members.begin());
    if (fabricshm_group_world(survivors) != static_cast<int>(action.members.size()) ||
        fabricshm_group_rank(survivors) != expected) {
        return wrong("after the shrink this is rank %d of %d, expected %d of %zu",
                     fabricshm_group_rank(survivors), fabricshm_group_world(survivors), expected,
                     action.members.size());
    }
    for (const int number : group.unknown) {
        const Operation& operation = operation_at(number);
        const Part& part = own_part(operation);
        if (part.output.slab == Slab::kNone) continue;
        memory(part.output.slab).set_known(number);
        overwrite_buffer(number, part.output, output_bytes(operation, operation.group_rank(rank_)));
    }
    group = {survivors, action.members, false, {}};
    return true;
}

bool RankPlayer::quiesce(const Action& action) {
    Group& group = groups_[static_cast<std::size_t>(action.group)];
    const int code = fabricshm_group_quiesce(group.handle, FABRICSHM_TIMEOUT_DEFAULT);
    if (code != FABRICSHM_OK) return wrong("quiesce: %s", fabricshm_error_text());
    for (const int number : group.unknown) {
        const Operation& operation = operation_at(number);
        const Part& part = own_part(operation);
        if (part.output.slab == Slab::kNone) continue;
        memory(part.output.slab).set_known(number);
        overwrite_buffer(number, part.output, output_bytes(operation, operation.group_rank(rank_)));
    }
    fabricshm_group_leave(group.handle);
    group = {};
    return true;
}

bool RankPlayer::do_action(const Action& action) {
    switch (action.type) {
        case Action::Type::kRun:
            return run(action.operation);
        case Action::Type::kStart:
            return start(action.operation);
        case Action::Type::kWait:
            return wait(action.operation, action.poll);
        case Action::Type::kOverwrite:
            return overwrite(action.operation);
        case Action::Type::kInspect:
            return inspect(action.operation);
        case Action::Type::kVerify:
            return verify();
        case Action::Type::kKill:
            ::kill(::getpid(), SIGKILL);
            return true;
        case Action::Type::kProbe:
            return probe(action);
        case Action::Type::kShrink:
            return shrink(action);
        case Action::Type::kQuiesce:
            return quiesce(action);
        case Action::Type::kLeave:
            fabricshm_group_leave(groups_[static_cast<std::size_t>(action.group)].handle);
            groups_[static_cast<std::size_t>(action.group)] = {};
            return true;
    }
    return false;
}

bool RankPlayer::play() {
    const auto& script = program_.scripts[static_cast<std::size_t>(rank_)];
    for (std::size_t i = 0; i < script.size(); ++i) {
        now_ = &script[i];
        board_.lines[rank_].position.store(static_cast<std::int64_t>(i), std::memory_order_relaxed);
        moved();
        spin(script[i].pause);
        if (!do_action(script[i])) return false;
    }
    board_.lines[rank_].position.store(static_cast<std::int64_t>(script.size()));
    return true;
}

}  // namespace

int play_rank(const Program& program, int rank, const PlayOptions& options, std::uint64_t run,
              Board& board) {
    RankPlayer player(program, rank, options, board);
    if (!player.open(run) || !player.play()) return 1;
    player.close();
    return 0;
}

}  // namespace oracle
