#include "libfabricshm/torch/rendezvous.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/torch/environment.hpp"
#include "libfabricshm/torch/invitation.hpp"
#include "libfabricshm/torch/job_arena.hpp"
#include "libfabricshm/torch/presence.hpp"

namespace fabricshm::torch_backend {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Clock = std::chrono::steady_clock;

// Of this rank, before there is a daemon: the host alone.
std::string host_identity() {
    Identity identity;
    identity.host = own_host();
    return encode_identity(identity);
}

Identity identity_in(const std::string& inviting) {
    const auto theirs = decode_identity(inviting);
    TORCH_CHECK(theirs.has_value(),
                "fabricshm: rank 0 did not say where it is: have all ranks the same version of "
                "fabricshm?");
    return *theirs;
}

// Ranks of several hosts speak over networks that are named as trusted, or not at all.
bool has_network() {
    return !environment("FABRIC_NET_TRUSTED").empty();
}

// Raises when this rank is not on the host of rank 0, with both in the text: before it opens an
// arena that the others will never see.
void check_host(const std::string& inviting, int rank) {
    const auto difference = difference_of(own_host(), "rank " + std::to_string(rank),
                                          identity_in(inviting).host, "rank 0");
    if (!difference || has_network()) return;
    throw std::runtime_error(
        "fabricshm: ranks of several hosts need a network that they may use: set "
        "FABRIC_NET_TRUSTED, or fabricrun --trusted, for all; " +
        *difference);
}

// Raises when it is attached to another daemon, or to one with another pool.
void check_daemon(const std::string& mine, const std::string& inviting, int rank) {
    const auto difference = difference_of(identity_in(mine), "rank " + std::to_string(rank),
                                          identity_in(inviting), "rank 0");
    if (!difference) return;
    throw std::runtime_error("fabricshm: the ranks of a process group need one fabricd; " +
                             *difference +
                             "; set FABRIC_SOCKET to the same for all, or name a network between "
                             "the daemons for all (FABRIC_NET_TRUSTED, fabricrun --trusted)");
}

// 64 random bits: two jobs of one user on one daemon must not share one arena.
std::string random_name(const char* prefix) {
    std::random_device device;
    std::ostringstream name;
    name << prefix << std::hex << device() << device();
    return name.str();
}

// The second process group of a process goes into the arena of the first: tensors that are in it
// already are zero copy for both.
std::string choose_arena() {
    std::string name = environment("FABRIC_ARENA");
    if (name.empty()) name = JobArena::current_name();
    return name.empty() ? random_name("torch-") : name;
}

std::shared_ptr<JobArena> open_arena(const std::string& name) {
    // A wrong size is an error of rank 0 alone, which reports it to the others in its invitation.
    return JobArena::open(name, environment("FABRIC_SOCKET"),
                          bytes_in_environment("FABRIC_ARENA_BYTES"));
}

// A store may be used again after destroy_process_group(), with the keys of the group before still
// in it. Counting arrivals gives every group a key of its own.
std::string invitation_key(const StorePtr& store, int size) {
    const std::int64_t arrivals = store->add("fabricshm/arrivals", 1);
    return "fabricshm/invitation/" + std::to_string((arrivals - 1) / size);
}

std::shared_ptr<JobArena> invite(const StorePtr& store, const std::string& key,
                                 Invitation& invitation) {
    invitation.host = host_identity();
    invitation.arena = choose_arena();
    invitation.group = random_name("pg-");
    try {
        auto arena = open_arena(invitation.arena);
        invitation.daemon = fabricshm_session_daemon(arena->session());
        invitation.host = fabricshm_session_identity(arena->session());
        invitation.memory = memory_at(fabricshm_arena_base(arena->handle()));
        store->set(key, encode_invitation(invitation));
        return arena;
    } catch (const std::exception& error) {
        // The others are waiting for the key: they get the reason instead of a timeout.
        invitation.error = error.what();
        store->set(key, encode_invitation(invitation));
        throw;
    }
}

[[noreturn]] void cannot_join(const std::string& why) {
    throw std::runtime_error("fabricshm: cannot join the process group: " + why);
}

std::string died(int rank) {
    return "rank " + std::to_string(rank) + " died";
}

// Its first line: some versions of PyTorch put the C++ stack behind it.
std::string store_failure(const std::exception& error) {
    const std::string text = error.what();
    return "the store has failed, which ends with the process that has it (mostly rank 0): " +
           text.substr(0, text.find('\n'));
}

// For every rank but rank 0: a value that rank 0 puts into the store, which often is in its own
// process and ends with it.
std::vector<std::uint8_t> word_of_rank_0(const StorePtr& store, const std::string& key,
                                         Presence& presence, Clock::time_point deadline) {
    bool is_dead = false;
    std::string why = "no word of rank 0: ";
    try {
        const auto look = [&] {
            // It may have said it and then ended.
            is_dead = presence.has_ended(0) && !store->check({key});
            if (is_dead) cannot_join(died(0));
        };
        if (await_keys(*store, {key}, deadline, look)) return store->get(key);
        why = presence.has_come(0) ? why + "timeout passed" : "timeout passed; rank 0 has not come";
    } catch (const std::exception& error) {
        if (is_dead || presence.ends_soon(0)) cannot_join(died(0));
        // Before it was known here which process rank 0 is.
        why += store_failure(error);
    }
    cannot_join(why);
}

// `is_apart`: its arena is another memory than that of rank 0.
std::shared_ptr<JobArena> accept(const std::vector<std::uint8_t>& inviting, int rank,
                                 Invitation& invitation, bool& is_apart) {
    const auto read = decode_invitation(inviting);
    TORCH_CHECK(read.has_value(),
                "fabricshm: what rank 0 published is no invitation: have all ranks the same "
                "version of fabricshm, and does nothing else write to the store's keys?");
    invitation = *read;
    if (!invitation.error.empty()) throw std::runtime_error("rank 0: " + invitation.error);
    check_host(invitation.host, rank);
    auto arena = open_arena(invitation.arena);
    const std::string mine = fabricshm_session_identity(arena->session());
    is_apart = difference_of(identity_in(mine), "", identity_in(invitation.host), "").has_value();
    if (is_apart && has_network()) return arena;
    check_daemon(mine, invitation.host, rank);
    if (memory_at(fabricshm_arena_base(arena->handle())) == invitation.memory) return arena;
    throw std::runtime_error(
        "fabricshm: the ranks of a process group need one fabricd. Rank 0 is attached to " +
        invitation.daemon + ", rank " + std::to_string(rank) + " to " +
        fabricshm_session_daemon(arena->session()) + "; set FABRIC_SOCKET to the same for all");
}

// Before the ranks wait for each other in the daemon, they do so in the store: there a rank that
// cannot come says why, and it is seen which ones have not come.
class RollCall {
  public:
    RollCall(StorePtr store, const std::string& key, int size, Clock::time_point deadline,
             Presence& presence)
        : store_(std::move(store)),
          presence_(presence),
          verdict_(key + "/verdict"),
          apart_(key + "/apart"),
          key_(key),
          size_(size),
          deadline_(deadline) {}

    /// This rank cannot take part: ends the others' waits. Never raises.
    void fail(const std::string& reason) noexcept {
        try {
            store_->set(verdict_, bytes_of(reason));
        } catch (const std::exception&) {
            // The store is gone, and the others learn that by themselves.
        }
    }

    /// The same, unless the others have ended already: then raises their reason. Rank 0 leaves with
    /// a verdict and its arena goes with it, so that what this rank found since is no reason.
    void fail_unless_over(const std::string& reason) {
        if (store_->check({verdict_})) hear();
        fail(reason);
    }

    /// Rank 0: waits for the others and lets them go on. Raises when one failed or did not come.
    /// True: at least one is apart, and the ranks meet as those of several hosts.
    bool lead() {
        if (size_ == 1) return false;
        std::vector<std::string> all;
        for (int rank = 1; rank < size_; ++rank) all.push_back(place_of(rank));
        const auto look = [&] {
            // One that can't come has said so there.
            if (store_->check({verdict_})) (void)hear();
            for (int rank = 1; rank < size_; ++rank) {
                if (presence_.has_ended(rank)) give_up(died(rank));
            }
        };
        if (!await_keys(*store_, all, deadline_, look)) give_up(missing());
        const bool apart = store_->check({apart_});
        store_->set(verdict_, bytes_of(apart ? kApart : ""));
        return apart;
    }

    /// Any other rank: is there, and waits for the word of rank 0, which it returns as lead() does.
    bool answer(int rank, bool is_apart) {
        std::string why;
        try {
            // Before it is there: rank 0 looks when all are.
            if (is_apart) store_->set(apart_, std::vector<std::uint8_t>());
            store_->set(place_of(rank), std::vector<std::uint8_t>());
        } catch (const std::exception& error) {
            why = presence_.ends_soon(0) ? died(0) : store_failure(error);
        }
        if (!why.empty()) cannot_join(why);
        // Rank 0 says which ranks are missing, and may have begun to wait later than this one.
        (void)word_of_rank_0(store_, verdict_, presence_, deadline_ + std::chrono::seconds(5));
        return hear();
    }

  private:
    static constexpr const char* kApart = "\n";  // the verdict on ranks of several hosts

    static std::vector<std::uint8_t> bytes_of(const std::string& text) {
        return {text.begin(), text.end()};
    }

    std::string place_of(int rank) const { return key_ + "/here/" + std::to_string(rank); }

    std::string missing() {
        std::string ranks;
        for (int rank = 1; rank < size_; ++rank) {
            if (store_->check({place_of(rank)})) continue;
            ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
        }
        return "timeout passed; of " + std::to_string(size_) +
               " ranks these have not come: " + ranks;
    }

    // Rank 0, for all.
    [[noreturn]] void give_up(const std::string& why) {
        fail("fabricshm: cannot join the process group: " + why);
        (void)hear();  // perhaps another one's reason, which was first
        cannot_join(why);
    }

    bool hear() {
        const auto verdict = store_->get(verdict_);
        if (verdict == bytes_of(kApart)) return true;
        if (!verdict.empty()) throw std::runtime_error({verdict.begin(), verdict.end()});
        return false;
    }

    StorePtr store_;
    Presence& presence_;
    std::string verdict_;  // empty: all are there, in one memory; kApart; else why they cannot join
    std::string apart_;    // there: a rank has another memory than rank 0
    std::string key_;
    int size_;
    Clock::time_point deadline_;
};

// The group's key in the store, where this rank says that it is there.
std::string come_to(const StorePtr& store, int size, int rank) {
    std::string why;
    try {
        const std::string key = invitation_key(store, size);
        Presence(store, key).announce(rank);
        return key;
    } catch (const std::exception& error) {
        why = store_failure(error);
    }
    cannot_join(why);
}

}  // namespace

std::shared_ptr<Communicator> meet(const StorePtr& store, int rank, int size,
                                   std::chrono::milliseconds timeout) {
    const auto limit = std::clamp<std::chrono::milliseconds>(timeout, std::chrono::milliseconds(0),
                                                             std::chrono::hours(24 * 365));
    const auto deadline = Clock::now() + limit;
    const std::string key = come_to(store, size, rank);
    Presence presence(store, key);
    RollCall roll_call(store, key, size, deadline, presence);
    Invitation invitation;
    std::shared_ptr<JobArena> arena;
    bool apart = false;
    if (rank == 0) {
        arena = invite(store, key, invitation);
        apart = roll_call.lead();
    } else {
        bool is_apart = false;
        const auto inviting = word_of_rank_0(store, key, presence, deadline);
        try {
            arena = accept(inviting, rank, invitation, is_apart);
        } catch (const std::exception& error) {
            // An error of rank 0 is known to all.
            if (invitation.error.empty()) roll_call.fail_unless_over(error.what());
            throw;
        }
        apart = roll_call.answer(rank, is_apart);
    }
    return std::make_shared<Communicator>(std::move(arena), invitation.group, rank, size, timeout,
                                          store, apart);
}

}  // namespace fabricshm::torch_backend
