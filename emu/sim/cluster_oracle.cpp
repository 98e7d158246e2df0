#include "emu/sim/cluster_oracle.hpp"

#include <algorithm>

namespace emu {

using fabricd::Incarnation;

namespace {

constexpr std::size_t kMaxFaultTexts = 10;
// A host ends its sessions so long before its lease ends (docs/hosts.md).
constexpr Seconds kMargin = 0.5;

}  // namespace

ClusterOracle::ClusterOracle(int hosts, Seconds ttl)
    : ttl_(ttl), hosts_(static_cast<std::size_t>(hosts)) {}

void ClusterOracle::fault(std::string text) {
    ++fault_count_;
    if (faults_.size() < kMaxFaultTexts) faults_.push_back(std::move(text));
}

int ClusterOracle::observers() const {
    return static_cast<int>(std::ranges::count(hosts_, false, &Truth::is_touched));
}

void ClusterOracle::started_sessions(int host, Incarnation incarnation, Seconds now) {
    hosts_[index(host)].writing.insert(incarnation);
    began_.try_emplace({host, incarnation}, now);
    if (!granted_.contains({host, incarnation})) return;
    fault("host " + std::to_string(host) + " has sessions of incarnation " +
          std::to_string(incarnation) + " again at " + std::to_string(now) +
          " s, whose memory others were granted");
}

void ClusterOracle::ended_sessions(int host) {
    hosts_[index(host)].writing.clear();
}

void ClusterOracle::set_power(int host, bool is_on) {
    hosts_[index(host)].has_power = is_on;
    if (!is_on) hosts_[index(host)].writing.clear();
}

void ClusterOracle::renewed(int host, Incarnation incarnation, Seconds sent) {
    Truth& truth = hosts_[index(host)];
    if (truth.incarnation != incarnation) truth.renewed = -1e9;
    truth.incarnation = incarnation;
    truth.renewed = std::max(truth.renewed, sent);
}

void ClusterOracle::failed(int host, Incarnation incarnation, bool is_death, Seconds renewed,
                           Seconds now) {
    touch(host);
    if (incarnation == 0) return;
    const auto [place, is_new] = loss_of_.try_emplace({host, incarnation}, losses_.size());
    if (!is_new) return;
    losses_.push_back({.host = host,
                       .incarnation = incarnation,
                       .is_death = is_death,
                       .at = now,
                       .began = began_[{host, incarnation}],
                       .renewed = renewed});
}

HostLoss* ClusterOracle::open_loss(int observer, const Life& life) {
    if (is_touched(observer)) return nullptr;
    const auto found = loss_of_.find(life);
    return found == loss_of_.end() ? nullptr : &losses_[found->second];
}

void ClusterOracle::suspects(int observer, const Life& life, Seconds now) {
    HostLoss* loss = open_loss(observer, life);
    if (loss == nullptr) return;
    ++loss->suspecting;
    loss->last_suspect = std::max(loss->last_suspect, now);
}

bool ClusterOracle::has_writers(const Life& life) const {
    return hosts_[index(life.first)].writing.contains(life.second);
}

void ClusterOracle::lost(int observer, const Life& life, Seconds now) {
    const Truth& truth = hosts_[index(life.first)];
    const std::string name = "host " + std::to_string(life.first) + ", incarnation " +
                             std::to_string(life.second) + ", was called lost at " +
                             std::to_string(now) + " s ";
    if (truth.incarnation == life.second && now < truth.renewed + ttl_ - kMargin) {
        fault(name + "while it holds its lease");
    }
    if (truth.has_power && truth.is_running && has_writers(life)) {
        fault(name + "while its daemon runs and its sessions write");
    }
    HostLoss* loss = open_loss(observer, life);
    if (loss == nullptr) return;
    ++loss->losing;
    loss->last_lost = std::max(loss->last_lost, now);
}

void ClusterOracle::fenced(int observer, const Life& life, bool was_lost, Seconds now) {
    HostLoss* loss = open_loss(observer, life);
    if (loss == nullptr) return;
    if (!was_lost) {
        ++loss->losing;
        loss->last_lost = std::max(loss->last_lost, now);
    }
    ++loss->fencing;
    loss->last_fenced = std::max(loss->last_fenced, now);
}

void ClusterOracle::granted(const Life& life, Seconds now) {
    granted_.insert(life);
    if (!has_writers(life)) return;
    fault("memory of host " + std::to_string(life.first) + ", incarnation " +
          std::to_string(life.second) + ", was granted at " + std::to_string(now) +
          " s while its sessions may write");
}

}  // namespace emu
