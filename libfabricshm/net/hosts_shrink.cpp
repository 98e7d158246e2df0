// The survivors of a group over several hosts make a new one, over the connections of the old one.
//
// In each pool the daemon finds the survivors. Their first rank, the speaker, sends their numbers
// to all ranks of the other hosts, and waits for the same of each host that is not known to be
// dead. The speakers compare what they know; then everything goes as when a group is joined, on
// endpoints and with keys of the new epoch: the exchange between the ranks goes through the
// speakers.
//
// An attempt may fail, at some before others, and be repeated; texts of the one before are still
// there then. So a speaker's texts have the number of its attempt, and those of an exchange also
// that of the receiver's: what was sent in another attempt of either is none.
//
// A host that says nothing and is not known to be dead may be alive behind a cut. Then the side
// with more hosts goes on; of two equal ones, that with the first host.
//
// A host that stood still, and was given up, finds connections that have ended: to it the others
// look dead. So in a cluster a side without most of the hosts goes on only while its own host holds
// its lease, by which it was not given up.
//
// A host may hold its lease and be cut off from the ranks of the others alone. So a side that
// leaves out hosts which may be alive, or that has not most of them, has the cluster write down
// which ranks go on: another side finds that its own are not among these.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

using Text = std::vector<std::byte>;

enum Round : int { kSurvivors, kView, kFirstExchange };

// How often a rank that waits for another asks whether its connection is still there.
constexpr Duration kAskEvery = std::chrono::milliseconds(50);
// A text that is there and not the one that is waited for is looked at so often.
constexpr Duration kLookAgain = std::chrono::milliseconds(1);
// How long two speakers that know of different survivors wait for the other to learn more.
constexpr Duration kDisagreement = std::chrono::seconds(1);

template <typename T>
Text text_of(const std::vector<T>& values) {
    Text text(values.size() * sizeof(T));
    std::memcpy(text.data(), values.data(), text.size());
    return text;
}

std::vector<int> ranks_in(const Text& text) {
    std::vector<int> ranks(text.size() / sizeof(int));
    std::memcpy(ranks.data(), text.data(), ranks.size() * sizeof(int));
    return ranks;
}

/// What a speaker sends, with the attempts that it belongs to.
struct Letter {
    std::uint32_t attempt = 0;   // of the sender
    std::uint32_t answered = 0;  // of the receiver, as the sender knows it; 0: of any
    Text body;
};

struct LetterHead {
    std::uint64_t check = 0;
    std::uint32_t attempt = 0;
    std::uint32_t answered = 0;
};

// A text that comes in the place of another one may be half there.
std::uint64_t check_of(const LetterHead& head, const std::byte* body, std::size_t bytes) noexcept {
    std::uint64_t sum = 0xcbf29ce484222325 ^ (std::uint64_t{head.attempt} << 32 | head.answered);
    for (std::size_t i = 0; i < bytes; ++i) {
        sum = (sum ^ static_cast<std::uint8_t>(body[i])) * 0x100000001b3;
    }
    return sum ^ bytes;
}

Text text_of(const Letter& letter) {
    LetterHead head{0, letter.attempt, letter.answered};
    head.check = check_of(head, letter.body.data(), letter.body.size());
    Text text(sizeof head + letter.body.size());
    std::memcpy(text.data(), &head, sizeof head);
    std::copy(letter.body.begin(), letter.body.end(), text.begin() + sizeof head);
    return text;
}

std::optional<Letter> letter_in(const Text& text) {
    LetterHead head;
    if (text.size() < sizeof head) return std::nullopt;
    std::memcpy(&head, text.data(), sizeof head);
    const std::byte* body = text.data() + sizeof head;
    const std::size_t bytes = text.size() - sizeof head;
    if (head.check != check_of(head, body, bytes)) return std::nullopt;
    return Letter{head.attempt, head.answered, Text(body, body + bytes)};
}

// While it lives its thread serves the peers. Between, and while the new endpoint is made or
// closed, which may take seconds, the thread of the links does: a peer must not look dead
// meanwhile.
class InOperation {
  public:
    explicit InOperation(Links& links) noexcept : links_(links) { links_.begin(); }
    ~InOperation() { links_.end(); }
    InOperation(const InOperation&) = delete;
    InOperation& operator=(const InOperation&) = delete;

  private:
    Links& links_;
};

// What the speaker found, for the other ranks of its host.
struct Finding {
    std::int32_t code = 0;  // an Errc
    std::int32_t rank = -1;
    std::int32_t members = 0;
    char reason[kReasonBytes] = "";
};

Finding finding_of(const Error& error, const std::string& text) {
    Finding found;
    found.code = static_cast<std::int32_t>(error.code);
    found.rank = error.detail;
    std::snprintf(found.reason, sizeof found.reason, "%s", text.c_str());
    return found;
}

// In the other processes of the host.
Error error_in(const Finding& found) {
    const auto length = static_cast<int>(::strnlen(found.reason, sizeof found.reason));
    return explain({static_cast<Errc>(found.code), found.rank, "shrink"}, "%.*s", length,
                   found.reason);
}

/// What a shrink asks of the cluster.
struct Outside {
    std::function<void()> give_up_lost;                           // hosts that are gone
    std::function<Result<void>(TimePoint deadline)> holds_place;  // may this one be given up?
    // These go on, and no others.
    std::function<Result<void>(const std::vector<int>& members)> settle;
};

class Shrink {
  public:
    /// `attempt`: counts the calls of the old group's shrink(), from 1.
    Shrink(HostsGroup& old, Group& local, Outside outside, std::uint32_t attempt,
           TimePoint deadline)
        : old_(old),
          links_(*old.links()),
          local_(local),
          outside_(std::move(outside)),
          attempt_(attempt),
          local_deadline_(deadline),
          deadline_(ahead_of(deadline)),
          heard_(static_cast<std::size_t>(old.world())) {}

    /// The members of the new group, by their old ranks.
    Result<std::vector<int>> agree();
    /// All-gather between the members, through the speakers.
    bool exchange(const void* mine, std::size_t bytes, void* all);
    /// Why it failed.
    const std::optional<Error>& failure() const noexcept { return failure_; }
    const std::string& failure_text() const noexcept { return failure_text_; }

  private:
    bool speaks() const noexcept { return local_.rank() == 0; }
    Result<void> run(Kind kind, const void* input, void* output, Bytes bytes);
    Result<void> find_members(const std::vector<int>& own);
    Result<void> collect(const std::vector<int>& own);
    Result<void> check_majority();
    Result<void> compare();
    Result<Letter> next_letter(int peer, int round);
    std::optional<Letter> letter_of(int peer, int round);
    void look_around(const std::vector<int>& awaited, TimePoint& probed);
    std::uint32_t& heard(int peer) { return heard_[static_cast<std::size_t>(peer)]; }
    Result<void> send(int peer, int round, const Text& body, TimePoint deadline);
    std::vector<int> other_speakers() const;
    Result<void> follow(int peer, const Text& own);
    Result<void> swap(const Text& own, std::vector<Text>& theirs);
    Error gone(int peer) const noexcept;
    Error late(int peer) const noexcept;
    Error of_local(const Error& error) const noexcept;

    HostsGroup& old_;
    Links& links_;
    Group& local_;
    const Outside outside_;
    const std::uint32_t attempt_;
    const TimePoint local_deadline_;         // of waits within this host
    const TimePoint deadline_;               // of those for the network
    std::vector<std::uint32_t> heard_;       // [rank]: the attempt in which that speaker is
    std::vector<std::vector<int>> by_host_;  // members on each old host; empty: it is gone
    std::vector<int> members_;
    std::vector<int> own_;  // of this host, by their ranks in its group; empty: not known yet
    bool may_leave_others_ = false;  // alive, behind a cut
    int round_ = kFirstExchange;
    std::optional<Error> failure_;
    std::string failure_text_;  // what comes after it has texts of its own
};

Error Shrink::gone(int peer) const noexcept {
    return explain({Errc::kPeer, peer, "shrink"},
                   "rank %d on host %s, a survivor, died while the survivors agreed", peer,
                   old_.host_name(peer).c_str());
}

Error Shrink::late(int peer) const noexcept {
    return explain({Errc::kTimeout, peer, "shrink"},
                   "rank %d on host %s, a survivor, did not answer in time: does it call shrink?",
                   peer, old_.host_name(peer).c_str());
}

// Ranks of the survivors' group of this host are not those of the old one. Once they are known.
Error Shrink::of_local(const Error& error) const noexcept {
    if (error.code != Errc::kPeer && error.code != Errc::kTimeout) return error;
    if (error.detail < 0 || static_cast<std::size_t>(error.detail) >= own_.size()) {
        return explain({error.code, -1, "shrink"},
                       "a rank of this host, %s, that had come to the shrink %s",
                       old_.host_name(old_.rank()).c_str(),
                       error.code == Errc::kPeer ? "died in it" : "stands still in it");
    }
    const int peer = own_[static_cast<std::size_t>(error.detail)];
    return error.code == Errc::kPeer ? gone(peer) : late(peer);
}

Result<void> Shrink::run(Kind kind, const void* input, void* output, Bytes bytes) {
    Call call;
    call.kind = kind;
    call.dtype = kernels::DType::kU8;
    call.input = static_cast<const std::byte*>(input);
    call.output = static_cast<std::byte*>(output);
    call.count = bytes;
    call.deadline = local_deadline_;
    const auto done = local_.run(call);
    return done.ok() ? done : of_local(done.error());
}

// Now and then in a wait for these: are their connections still there, and their hosts? Of a host
// that is silent another rank may have heard already that its cluster has given it up.
void Shrink::look_around(const std::vector<int>& awaited, TimePoint& probed) {
    const TimePoint now = Clock::now();
    if (now - probed < kAskEvery) return;
    probed = now;
    for (const int peer : awaited) links_.probe(peer);
    outside_.give_up_lost();
}

std::optional<Letter> Shrink::letter_of(int peer, int round) {
    const auto text = links_.control_of(peer, round);
    return text ? letter_in(*text) : std::nullopt;
}

// Waits for the text of a speaker that is known.
Result<Letter> Shrink::next_letter(int peer, int round) {
    TimePoint probed{};
    for (TimePoint now = Clock::now(); now < deadline_; now = Clock::now()) {
        if (auto letter = letter_of(peer, round)) return *letter;
        if (links_.lost(peer)) return gone(peer);
        look_around({peer}, probed);
    }
    return late(peer);
}

Result<void> Shrink::send(int peer, int round, const Text& body, TimePoint deadline) {
    const std::uint32_t answered = round >= kFirstExchange ? heard(peer) : 0;
    return links_.send_control(peer, round, text_of(Letter{attempt_, answered, body}), deadline);
}

std::vector<int> Shrink::other_speakers() const {
    std::vector<int> speakers;
    for (const auto& ranks : by_host_) {
        if (!ranks.empty() && ranks.front() != old_.rank()) speakers.push_back(ranks.front());
    }
    return speakers;
}

// Which ranks of the other hosts are left. A host is waited for until all its ranks are lost, or
// until half of the time is over: the rest is for those that came.
Result<void> Shrink::collect(const std::vector<int>& own) {
    const HostsPlan& plan = old_.plan();
    by_host_.assign(static_cast<std::size_t>(plan.hosts()), {});
    by_host_[static_cast<std::size_t>(old_.own_host())] = own;
    const TimePoint until = Clock::now() + (deadline_ - Clock::now()) / 2;
    for (int rank = 0; rank < plan.world(); ++rank) {
        if (!plan.remote(rank, old_.rank()) || links_.lost(rank)) continue;
        // One that does not take it is found out below.
        (void)send(rank, kSurvivors, text_of(own),
                   std::min(until, Clock::now() + std::chrono::seconds(1)));
    }
    FAULT_POINT("hosts.shrink.sent");
    // All of them in each turn: one that is silent must not take the time of those behind it.
    TimePoint probed{};
    for (bool waits = true; waits; waits = waits && Clock::now() < until) {
        waits = false;
        std::vector<int> silent;
        for (int host = 0; host < plan.hosts(); ++host) {
            auto& found = by_host_[static_cast<std::size_t>(host)];
            for (const int rank : plan.ranks_of(host)) {
                // One that has died since speaks for no host, whatever it said before.
                if (!found.empty() || links_.lost(rank)) continue;
                silent.push_back(rank);
                if (const auto letter = letter_of(rank, kSurvivors)) found = ranks_in(letter->body);
            }
            waits =
                waits || (found.empty() && std::ranges::any_of(plan.ranks_of(host), [&](int rank) {
                              return !links_.lost(rank);
                          }));
        }
        look_around(silent, probed);
    }
    for (int host = 0; host < plan.hosts(); ++host) {
        for (const int rank : by_host_[static_cast<std::size_t>(host)]) {
            if (rank < 0 || rank >= plan.world() || plan.host_of(rank) != host) {
                const int first = plan.leader_of(host);
                return explain({Errc::kCorrupt, first, "shrink"},
                               "host %s, with rank %d, sent a list of survivors that are not its",
                               old_.host_name(first).c_str(), first);
            }
        }
    }
    return {};
}

Result<void> Shrink::check_majority() {
    const HostsPlan& plan = old_.plan();
    int alive = 0;
    int silent = -1;
    for (int host = 0; host < plan.hosts(); ++host) {
        if (!by_host_[static_cast<std::size_t>(host)].empty()) {
            ++alive;
            continue;
        }
        const auto& ranks = plan.ranks_of(host);
        const bool dead = std::ranges::all_of(ranks, [&](int rank) { return links_.dead(rank); });
        if (!dead) silent = host;
    }
    const bool larger = 2 * alive > plan.hosts();
    // Of two sides one at most leaves out none but the dead and has most of the hosts: all others
    // ask the cluster, which says yes to one of them.
    may_leave_others_ = !larger || silent >= 0;
    if (!larger) FABRIC_TRY_VOID(outside_.holds_place(deadline_));
    const bool first_half = 2 * alive == plan.hosts() && !by_host_.front().empty();
    if (silent < 0 || larger || first_half) return {};
    const int rank = plan.leader_of(silent);
    return explain({Errc::kPeer, rank, "shrink"},
                   "host %s with rank %d does not answer and is not known to be dead, and the "
                   "hosts that are left are not the larger part",
                   old_.host_name(rank).c_str(), rank);
}

// Speakers that know of different hosts would make groups that wait for each other.
Result<void> Shrink::compare() {
    const std::vector<int> speakers = other_speakers();
    const Text own = text_of(members_);
    for (const int peer : speakers) FABRIC_TRY_VOID(send(peer, kView, own, deadline_));
    for (const int peer : speakers) {
        // What is there may be from an attempt before this one, or from before a death.
        const TimePoint until = std::min(deadline_, Clock::now() + kDisagreement);
        TimePoint probed{};
        while (true) {
            FABRIC_TRY(const Letter theirs, next_letter(peer, kView));
            heard(peer) = theirs.attempt;
            if (theirs.body == own) break;
            look_around({peer}, probed);
            if (links_.lost(peer)) return gone(peer);
            if (Clock::now() < until) {
                std::this_thread::sleep_for(kLookAgain);
                continue;
            }
            return explain({Errc::kBroken, peer, "shrink"},
                           "ranks %d and %d, on hosts %s and %s, do not know of the same survivors",
                           old_.rank(), peer, old_.host_name(old_.rank()).c_str(),
                           old_.host_name(peer).c_str());
        }
    }
    return {};
}

Result<void> Shrink::find_members(const std::vector<int>& own) {
    FABRIC_TRY_VOID(collect(own));
    FABRIC_TRY_VOID(check_majority());
    for (const auto& ranks : by_host_) members_.insert(members_.end(), ranks.begin(), ranks.end());
    std::ranges::sort(members_);
    FAULT_POINT("hosts.shrink.collected");
    FABRIC_TRY_VOID(compare());
    return may_leave_others_ ? outside_.settle(members_) : Result<void>{};
}

Result<std::vector<int>> Shrink::agree() {
    const InOperation busy(links_);
    const int self = old_.rank();
    std::vector<int> own(static_cast<std::size_t>(local_.world()));
    FABRIC_TRY_VOID(run(Kind::kAllGather, &self, own.data(), sizeof self));
    own_ = own;
    // The others of this host get what the speaker found, or why it did not.
    Finding found;
    if (speaks()) {
        const auto result = find_members(own);
        if (!result.ok()) found = finding_of(result.error(), explanation_of(result.error()));
        found.members = static_cast<std::int32_t>(members_.size());
    }
    FABRIC_TRY_VOID(run(Kind::kBroadcast, &found, &found, sizeof found));
    if (found.code != 0) return error_in(found);
    members_.resize(static_cast<std::size_t>(found.members));
    FABRIC_TRY_VOID(
        run(Kind::kBroadcast, members_.data(), members_.data(), members_.size() * sizeof(int)));
    // The dead and the unreachable: what they have sent and was late must not land.
    for (int rank = 0; rank < old_.world(); ++rank) {
        const bool left = std::ranges::binary_search(members_, rank);
        if (!left && old_.plan().remote(rank, self)) links_.fence(rank);
    }
    FAULT_POINT("hosts.shrink.agreed");
    return members_;
}

// A speaker that began again since this one compared with it expects the first exchange once more.
// Later than that it has missed what this one has.
Result<void> Shrink::follow(int peer, const Text& own) {
    const auto view = letter_of(peer, kView);
    if (!view || view->attempt == heard(peer)) return {};
    if (round_ != kFirstExchange || view->body != text_of(members_)) {
        return explain({Errc::kBroken, peer, "shrink"},
                       "rank %d on host %s began its shrink again: call it again, too", peer,
                       old_.host_name(peer).c_str());
    }
    heard(peer) = view->attempt;
    return send(peer, round_, own, deadline_);
}

// Gives all other speakers what this host has, and takes what theirs have: `theirs` by host.
Result<void> Shrink::swap(const Text& own, std::vector<Text>& theirs) {
    const InOperation busy(links_);
    const HostsPlan& plan = old_.plan();
    const std::vector<int> speakers = other_speakers();
    for (const int peer : speakers) FABRIC_TRY_VOID(send(peer, round_, own, deadline_));
    std::vector<int> awaited = speakers;
    TimePoint probed{};
    for (TimePoint now = Clock::now(); !awaited.empty(); now = Clock::now()) {
        if (now >= deadline_) return late(awaited.front());
        for (const int peer : speakers) {
            if (links_.lost(peer)) return gone(peer);
            FABRIC_TRY_VOID(follow(peer, own));
        }
        std::erase_if(awaited, [&](int peer) {
            auto letter = letter_of(peer, round_);
            const bool current =
                letter && letter->attempt == heard(peer) && letter->answered == attempt_;
            if (!current) return false;
            theirs[static_cast<std::size_t>(plan.host_of(peer))] = std::move(letter->body);
            return true;
        });
        look_around(awaited, probed);
    }
    return {};
}

bool Shrink::exchange(const void* mine, std::size_t bytes, void* all) {
    Text host(bytes * static_cast<std::size_t>(local_.world()));
    const auto note = [this](const Error& error) {
        if (failure_) return false;
        failure_ = error;
        failure_text_ = explanation_of(error);
        return false;
    };
    if (const auto done = run(Kind::kAllGather, mine, host.data(), bytes); !done.ok()) {
        return note(done.error());
    }
    Text whole(bytes * members_.size());
    std::vector<Text> theirs(by_host_.size());
    Finding found;
    if (speaks()) {
        if (const auto done = swap(host, theirs); !done.ok()) note(done.error());
        theirs[static_cast<std::size_t>(old_.own_host())] = host;
    }
    for (std::size_t from = 0; speaks() && !failure_ && from < by_host_.size(); ++from) {
        const auto& ranks = by_host_[from];
        if (theirs[from].size() != bytes * ranks.size()) {
            note(explain({Errc::kBroken, ranks.front(), "shrink"},
                         "rank %d on host %s sent %zu bytes for its host and not %zu",
                         ranks.front(), old_.host_name(ranks.front()).c_str(), theirs[from].size(),
                         static_cast<std::size_t>(bytes) * ranks.size()));
            break;
        }
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            const auto at = std::ranges::lower_bound(members_, ranks[i]) - members_.begin();
            std::memcpy(&whole[static_cast<std::size_t>(at) * bytes], &theirs[from][i * bytes],
                        bytes);
        }
    }
    ++round_;
    FAULT_POINT("hosts.shrink.exchanged");
    if (speaks() && failure_) found = finding_of(*failure_, failure_text_);
    if (const auto done = run(Kind::kBroadcast, &found, &found, sizeof found); !done.ok()) {
        return note(done.error());
    }
    if (found.code != 0) return note(error_in(found));
    const auto done = run(Kind::kBroadcast, whole.data(), whole.data(), whole.size());
    if (!done.ok()) return note(done.error());
    std::memcpy(all, whole.data(), whole.size());
    return true;
}

}  // namespace

Result<std::unique_ptr<HostsGroup>> HostsGroup::shrink(HostsSpec spec, TimePoint deadline) {
    retire();
    auto joined = spec.join(0, 0, deadline);
    if (!joined.ok()) {
        // As the daemon says; it counts the ranks of each host from 0.
        const std::string said = explanation_of(joined.error());
        const Error found = of_local(joined.error());
        const bool names = found.code == Errc::kTimeout || found.code == Errc::kPeer;
        if (!names) return explain(found, "%s", said.c_str());
        return explain(found, "rank %d on host %s is missing; there ranks are counted from 0: %s",
                       found.detail, host_name(rank()).c_str(), said.c_str());
    }
    std::unique_ptr<Group> local = std::move(joined).value();
    FAULT_POINT("hosts.shrink.joined");
    const std::uint64_t id = local->id();
    const int place = local->rank();
    Outside outside{give_up_lost_, spec_.holds_place, {}};
    if (!outside.holds_place) outside.holds_place = [](TimePoint) { return Result<void>{}; };
    outside.settle = [this, deadline](const std::vector<int>& ranks) {
        return spec_.settle ? spec_.settle(id_, ranks, deadline) : Result<void>{};
    };
    Shrink steps(*this, *local, std::move(outside), ++shrinks_, deadline);
    const auto members = steps.agree();
    Result<std::unique_ptr<HostsGroup>> made =
        members.ok() ? Error{Errc::kBroken, 0, "shrink"} : members.error();
    if (members.ok()) {
        const auto self = std::ranges::lower_bound(*members, rank()) - members->begin();
        spec.rank = static_cast<int>(self);
        spec.world = static_cast<int>(members->size());
        spec.host = spec_.host;
        spec.pool = spec_.pool;
        spec.trusted = spec_.trusted;
        spec.ring_from = spec_.ring_from;
        spec.exchange = [&steps](const void* mine, std::size_t bytes, void* all) {
            return steps.exchange(mine, bytes, all);
        };
        spec.join = [&local](int, int, TimePoint) -> Result<std::unique_ptr<Group>> {
            return std::move(local);
        };
        made = join(std::move(spec), deadline);
        if (!made.ok() && steps.failure()) {
            made = explain(*steps.failure(), "%s", steps.failure_text().c_str());
        }
    }
    if (local != nullptr) {
        local.reset();
        spec_.leave(id, place);
    }
    return made;
}

}  // namespace fabricshm::net
