// What a daemon knows of the hosts of its cluster: each with its incarnations, and what became of
// these. docs/hosts.md, "Leases and fences".

#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fabricd/net/boot_clock.hpp"
#include "fabricd/net/host_record.hpp"

namespace fabricd {

enum class HostState {
    kListed,   // by a static list: nothing says whether it is there
    kUp,       // holds its lease
    kBack,     // holds its lease again, while an incarnation before it is not fenced
    kSuspect,  // its record is gone, but its own clock may still allow it to grant
    kLost,     // its lease is over; whether it still writes is not known
    kFenced,   // it can't write any more, and never will
};

/// "up", as it is shown and sent.
const char* name_of(HostState state) noexcept;

/// Of one incarnation. `kBack` and `kUp` are those of the newest one only.
struct HostLife {
    Incarnation number = 0;
    std::uint64_t machine = 0;
    std::uint64_t boot = 0;
    HostState state = HostState::kUp;
    BootTime since{};
    BootTime lost_at{};              // while suspect: when it becomes lost
    fabricshm::Duration grace = {};  // of its own lease, where that is longer than ours
    std::string by = {};             // fenced: by which host, and how
    std::string how = {};
};

struct Host {
    HostRecord record;            // of the newest incarnation
    std::vector<HostLife> lives;  // the newest last
};

/// Something that became of an incarnation; for the log, and for what waits for it.
struct HostChange {
    std::string host;
    Incarnation incarnation = 0;
    HostState from = HostState::kUp;
    HostState to = HostState::kUp;
    std::string how;  // of fenced
};
using HostChanges = std::vector<HostChange>;

/// Plain data, and the functions below are its rules: no clock, no thread. `version` rises with
/// every change.
struct HostTable {
    fabricshm::Duration grace{};  // grace_after_deletion() of the cluster's lease
    std::map<std::string, Host, std::less<>> hosts;
    std::uint64_t version = 1;
    BootTime first_loss = BootTime::max();  // no suspect becomes lost before
    std::uint64_t losses = 0;  // rises when an incarnation becomes lost, and when it is so no more
};

/// Where versions begin, by the instance of the daemon: not 0, and far from those of any other
/// start.
constexpr std::uint64_t first_version(std::uint64_t instance) noexcept {
    return (instance >> 8 << 8 >> 1) + 1;
}

/// A host of a static list. Nothing ever changes its state but a person.
void list_host(HostTable& table, const std::string& name, BootTime now);

/// The store has this record, with `record.incarnation` filled in. An incarnation that is not the
/// newest is old news and ignored; so is one that is lost or fenced already: both are for good. A
/// suspect one is up again: the store had lost its data, and the host has written its record again
/// in time. Incarnations before it become suspect, or fenced where another boot of the same machine
/// proves that they ended.
HostChanges note_record(HostTable& table, const std::string& name, const HostRecord& record,
                        BootTime now);

/// The record of this incarnation is no longer there; its grace begins.
HostChanges note_deletion(HostTable& table, std::string_view name, Incarnation incarnation,
                          BootTime now);

/// Suspects whose grace has passed are lost.
HostChanges elapse(HostTable& table, BootTime now);

/// The store was away, or this daemon stood still: hosts that are there may have had no chance to
/// say so, and the grace of all suspects begins once more.
void begin_graces_again(HostTable& table, BootTime now);

/// When elapse() has something to do at the earliest; BootTime::max(): never.
BootTime next_change(const HostTable& table) noexcept;

/// Fenced: proved by a command that ended well, by a person, by the host itself that ended its
/// sessions. Also of an incarnation that is up: a person may be ahead of its lease. Lost: another
/// daemon's grace began earlier. Either way also of an incarnation that this table has never seen,
/// from before this daemon was started.
HostChanges note_fence(HostTable& table, const std::string& name, Incarnation incarnation,
                       const FenceRecord& record, BootTime now);

/// nullptr: there is none of that name, or no such incarnation.
const HostLife* find_life(const HostTable& table, std::string_view name, Incarnation incarnation);
const HostLife* newest_life(const HostTable& table, std::string_view name);

/// Of the newest incarnation, with kBack for kUp while an earlier one is not fenced.
HostState state_of(const Host& host) noexcept;

/// Whether bytes that this incarnation could write may be granted again.
/// Only of a fenced one, and of none that the table doesn't know.
bool may_grant_bytes_of(const HostTable& table, std::string_view name, Incarnation incarnation);

}  // namespace fabricd
