#include "emu/sim/fabric.hpp"

#include <algorithm>
#include <cmath>

#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricshm::Step;
using fabricshm::StepPlan;
using fabricshm::Touch;
using fabricshm::Where;
using fabricshm::Whose;

namespace {

constexpr double kLine = 64;

// Between two points of the curve on a logarithmic scale, flat beyond its ends.
CacheCurve::Point at_footprint(const CacheCurve& curve, double footprint) {
    const auto& points = curve.points;
    const auto above = std::find_if(points.begin(), points.end(),
                                    [&](const auto& point) { return point.footprint > footprint; });
    if (above == points.begin()) return points.front();
    if (above == points.end()) return points.back();
    const auto& low = *(above - 1);
    const double part =
        std::log(footprint / low.footprint) / std::log(above->footprint / low.footprint);
    const auto mix = [&](double a, double b) { return a + (b - a) * part; };
    return {footprint, mix(low.kept, above->kept), mix(low.handed, above->handed),
            mix(low.given, above->given), mix(low.streamed, above->streamed)};
}

}  // namespace

Fabric::Fabric(const Topology& topology)
    : topology_(topology), devices_(topology.devices()), homes_(topology.homes()) {
    FABRIC_CHECK(topology.error_message().empty());
    const std::size_t count = topology.nodes.size();
    // -1 is "no resource": a rate of 0 in a topology is a part that never limits, and costs nothing
    // here either.
    for (auto* list : {&up_, &down_, &inside_, &media_, &cores_}) list->assign(count, -1);
    below_.assign(count, 0);
    depth_.assign(count, 0);
    make_resources();
    // Buffers lie on all homes in equal parts; summed up towards the root that gives what is below
    // each node.
    for (const int home : homes_) below_[at(home)] = 1.0 / static_cast<double>(homes_.size());
    // Parents come before children, so that one pass from the back is enough.
    for (std::size_t i = count; i-- > 1;) below_[at(topology.nodes[i].parent)] += below_[i];
    set_commons();
    count_turns();
    // All ranks read the words of all others. Caches of a coherent host spare the memory that.
    if (!topology.cache.points.empty()) return;
    const double lines = static_cast<double>(world()) * (world() - 1);
    double rate = 0;
    const bool one_home = topology.placement != Placement::kInterleaved;
    // The words of a group block lie where buffers lie: on all homes when interleaved, else on the
    // first.
    for (const int home : homes_) {
        const Node& node = topology.nodes[at(home)];
        Rate least = node.media > 0 ? node.media : 1e18;
        if (home != 0 && node.up > 0) least = std::min(least, node.up);
        rate += least;
        if (one_home) break;
    }
    words_floor_ = lines * kLine / rate;
}

void Fabric::make_resources() {
    // Rates that do not limit become no resources: every one of them costs a pass in
    // Fluid::solve().
    const auto limit = [this](Rate rate) { return rate > 0 ? fluid_.add_resource(rate) : -1; };
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
        const Node& node = topology_.nodes[i];
        if (i != 0) depth_[i] = depth_[at(node.parent)] + 1;
        // The root has no link to a parent.
        if (i != 0) up_[i] = limit(node.up);
        if (i != 0) down_[i] = limit(node.down);
        inside_[i] = limit(node.inside);
        if (node.kind == NodeKind::kHost) cores_[i] = limit(node.cores);
    }
    for (const int home : homes_) media_[at(home)] = limit(topology_.nodes[at(home)].media);
}

// What reading (spread 0) or writing (spread 1) a byte of every home's share costs a rank that is
// below no node: everything comes up from the homes. add_spread() corrects it on the own way.
void Fabric::set_commons() {
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
        const double below = below_[i];
        if (up_[i] >= 0) fluid_.set_common(0, up_[i], below);
        if (down_[i] >= 0) fluid_.set_common(1, down_[i], below);
        // From below a node to a rank outside of all nodes: once up its link, by the share of bytes
        // that begins there.
        mean_latency_ += i == 0 ? 0 : below * topology_.nodes[i].latency;
        for (int spread = 0; spread < kSpreads; ++spread) {
            if (inside_[i] >= 0) fluid_.set_common(spread, inside_[i], below);
        }
    }
    const double each = 1.0 / static_cast<double>(homes_.size());
    for (const int home : homes_) {
        for (int spread = 0; spread < kSpreads; ++spread) {
            if (media_[at(home)] >= 0) fluid_.set_common(spread, media_[at(home)], each);
        }
    }
}

// Only machines with a cache curve ask how much is touched; elsewhere every touch goes over links.
void Fabric::prepare(const StepPlan& plan, bool streaming) {
    streaming_ = streaming;
    loads_.clear();
    if (topology_.cache.points.empty()) return;
    // What one rank touches in the operation, each place once; ranks that share a core add up.
    // Steps beyond some thousand only repeat those before.
    double most = 0;
    double most_slots = 0;
    // The first ranks are enough to find one with the most: beyond them plans only repeat.
    for (int rank = 0; rank < std::min(world(), 64); ++rank) {
        std::map<std::tuple<Where, Whose, bool>, double> places;
        const std::uint64_t steps = std::min<std::uint64_t>(plan.step_count(), 4096);
        for (std::uint64_t index = 0; index < steps; ++index) {
            note_places(rank, plan.step(rank, index), places);
        }
        double sum = 0;
        double slots = 0;
        for (const auto& [place, bytes] : places) {
            (std::get<0>(place) == Where::kSlot ? slots : sum) += bytes;
        }
        most = std::max(most, sum + slots);
        most_slots = std::max(most_slots, slots);
    }
    // All devices of a machine with caches are on one host (machine_topology()).
    const Node& host = topology_.nodes[at(topology_.nodes[at(devices_[0])].parent)];
    const double shared = host.cores > 0 ? std::max(1.0, 1.0 * world() / host.cores) : 1.0;
    footprint_ = most * shared;
    slot_footprint_ = most_slots * shared;
}

void Fabric::note_places(int rank, const Step& step,
                         std::map<std::tuple<Where, Whose, bool>, double>& places) const {
    for (int i = 0; i < step.touch_count; ++i) {
        const Touch& touch = step.touches[at(i)];
        const double part = step.claimed ? 1.0 / world() : 1.0;
        const double bytes = static_cast<double>(touch.bytes) * copies(rank, touch) * part;
        double& known = places[{touch.where, touch.whose, touch.write}];
        // Two slots of a rank are used in turn; callers' buffers are walked through.
        known = touch.where == Where::kSlot ? std::max(known, 2 * bytes) : known + bytes;
    }
}

// In how many buffers a touch is.
double Fabric::copies(int, const Touch& touch) const {
    // Of a buffer that all or all others have; the rest is a single rank's.
    if (touch.whose == Whose::kEach) return world();
    return touch.whose == Whose::kOthers ? world() - 1 : 1;
}

int Fabric::node_of(int rank, const Touch& touch) const {
    // Homes in turn, rank by rank, as Placement::kHome says; with a home per device this is the
    // device itself.
    int owner = rank;
    if (touch.whose == Whose::kBefore) owner = (rank + world() - 1) % world();
    if (touch.whose == Whose::kFirst) owner = 0;
    return homes_[at(owner) % homes_.size()];
}

void Fabric::add_spread(int rank, double bytes, bool write, std::vector<Use>& uses,
                        Load& load) const {
    // The common weights are those of a rank outside of all nodes. On the own way to the root they
    // are corrected: what lies below a node does not leave it (`away`), and all the rest comes in
    // through its link (`towards`).
    load.spread[write ? 1 : 0] += bytes;
    int child = -1;
    for (int node = devices_[at(rank)]; node >= 0; node = topology_.nodes[at(node)].parent) {
        const double below = below_[at(node)];
        const int towards = write ? up_[at(node)] : down_[at(node)];  // the way beyond the node
        const int away = write ? down_[at(node)] : up_[at(node)];
        if (towards >= 0) uses.push_back({towards, bytes * (1 - below)});
        if (away >= 0) uses.push_back({away, -bytes * below});
        const double own_side = child < 0 ? 0 : below_[at(child)];
        if (inside_[at(node)] >= 0) {
            uses.push_back({inside_[at(node)], bytes * (1 - own_side - below)});
        }
        child = node;
    }
}

// Climbs from both ends at once, always the deeper one, until they meet: the tree's only way.
void Fabric::add_route(int rank, int home, double bytes, bool write, std::vector<Use>& uses) const {
    int from = write ? devices_[at(rank)] : home;
    int to = write ? home : devices_[at(rank)];
    const auto use = [&](int resource) {
        if (resource >= 0) uses.push_back({resource, bytes});
    };
    use(media_[at(home)]);
    const int ends[] = {from, to};
    while (from != to) {
        const bool rising = depth_[at(from)] >= depth_[at(to)];
        int& moving = rising ? from : to;
        use(rising ? up_[at(moving)] : down_[at(moving)]);
        // The ends' own insides are not passed through.
        if (moving != ends[0] && moving != ends[1]) use(inside_[at(moving)]);
        moving = topology_.nodes[at(moving)].parent;
    }
    if (from != ends[0] && from != ends[1]) use(inside_[at(from)]);
}

double Fabric::engine_cost(int rank, const Touch& touch, double bytes) const {
    const Node& device = topology_.nodes[at(devices_[at(rank)])];
    // Without a curve an engine is as fast as its rating, wherever the bytes are.
    if (topology_.cache.points.empty()) {
        return bytes / (touch.write ? device.write : device.read);
    }
    const bool in_slot = touch.where == Where::kSlot;
    const auto point = at_footprint(topology_.cache, in_slot ? slot_footprint_ : footprint_);
    // Bytes that another core touched last come from its cache or go to it, whatever stores are
    // used; stores past the cache only help what no cache had.
    const double each = touch.handed ? (touch.write ? point.given : point.handed)
                        : streaming_ ? point.streamed
                                     : point.kept;
    return bytes * each / device.speed;
}

void Fabric::add_touch(int rank, const Touch& touch, double share, std::vector<Use>& uses,
                       Load& load) const {
    // A coherent host's caches and memory are measured together, as what a touch costs the core
    // that does it.
    if (!topology_.cache.points.empty()) return;  // all of it is in the engine's cost
    const double bytes = share * copies(rank, touch);
    const bool alike = touch.whose == Whose::kEach || touch.whose == Whose::kOthers ||
                       touch.whose == Whose::kShares ||
                       topology_.placement == Placement::kInterleaved;
    if (alike) return add_spread(rank, bytes, touch.write, uses, load);
    add_route(rank, node_of(rank, touch), bytes, touch.write, uses);
}

int Fabric::load_of(int rank, const Step& step) {
    // A step's shape, without its sizes: a plan has millions of steps and a handful of shapes.
    std::uint64_t shape = step.claimed ? 1 : 0;
    for (int i = 0; i < step.touch_count; ++i) {
        const Touch& touch = step.touches[at(i)];
        shape = shape * 97 + 1 + static_cast<std::uint64_t>(touch.where) * 24 +
                static_cast<std::uint64_t>(touch.whose) * 4 + (touch.write ? 2 : 0) +
                (touch.handed ? 1 : 0);
    }
    // Loads are per rank, since the way to the homes is.
    const auto [known, fresh] = loads_.try_emplace({rank, shape}, -1);
    if (!fresh) return known->second;
    Load load;
    std::vector<Use> uses;
    double engine = 0;
    double reads = 0;
    for (int i = 0; i < step.touch_count; ++i) {
        const Touch& touch = step.touches[at(i)];
        // Tiny lines are larger than what they carry; the first touch sets the unit.
        const double share =
            static_cast<double>(touch.bytes) / static_cast<double>(step.touches[0].bytes);
        add_touch(rank, touch, share, uses, load);
        const double bytes = share * copies(rank, touch);
        engine += engine_cost(rank, touch, bytes);
        // Only reads wait for an answer; stores are posted.
        if (!touch.write) reads += bytes;
    }
    const int device = devices_[at(rank)];
    const int host = topology_.nodes[at(device)].parent;
    if (host >= 0 && cores_[at(host)] >= 0) uses.push_back({cores_[at(host)], engine});
    // Alone, a rank is limited by its engine: a unit of work costs `engine` seconds.
    load.most = 1 / engine;
    // Little's law: with so many bytes in flight for so long, no more than this per second.
    const double window = topology_.nodes[at(device)].window_bytes;
    const Seconds latency = first_byte(rank, step);
    if (window > 0 && latency > 0 && reads > 0) {
        load.most = std::min(load.most, window / latency / reads);
    }
    // Touches of one step may use the same resource; Fluid wants each once.
    std::sort(uses.begin(), uses.end(),
              [](const Use& a, const Use& b) { return a.resource < b.resource; });
    for (const Use& use : uses) {
        const bool again = !load.uses.empty() && load.uses.back().resource == use.resource;
        if (again) load.uses.back().weight += use.weight;
        if (!again) load.uses.push_back(use);
    }
    return known->second = fluid_.add_load(std::move(load));
}

// What came up from the homes and what went down to them: tests compare this with what the steps
// asked for.
double Fabric::read_at_homes() const {
    double sum = 0;
    for (const int home : homes_) {
        if (up_[at(home)] >= 0) sum += fluid_.passed(up_[at(home)]);
    }
    return sum;
}

double Fabric::written_at_homes() const {
    double sum = 0;
    for (const int home : homes_) {
        if (down_[at(home)] >= 0) sum += fluid_.passed(down_[at(home)]);
    }
    return sum;
}

}  // namespace emu
