#include "fabricd/data/mount/node_table.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;

namespace {

constexpr std::size_t kMaxUnits = 5;
constexpr int kMaxDepth = 512;  // a path has 1,024 bytes

}  // namespace

struct NodeTable::Head {
    std::uint32_t cursor;               // units from here on were never used; 0 in a new table
    std::uint32_t free[kMaxUnits + 1];  // first free run of each length
    std::uint64_t count;
};

// A free run keeps its length and generation; `next` leads to the next free one.
struct NodeTable::Record {
    std::uint32_t generation;
    std::uint16_t units;
    std::uint16_t name_bytes;
    std::uint64_t references;  // the kernel's, and one for each child; 0: free
    std::uint32_t parent;
    std::uint32_t next;  // of the same bucket
    std::uint64_t inode;
    std::uint64_t stamp;
    std::uint64_t bytes;
    std::int64_t mtime_ns;
    std::uint8_t is_folder;
    char name[7];  // goes on in the units that follow
};

namespace {

constexpr std::size_t kNameInFirst = 7;

std::uint32_t units_for(std::size_t name_bytes) {
    const std::size_t more = name_bytes > kNameInFirst ? name_bytes - kNameInFirst : 0;
    return static_cast<std::uint32_t>(1 +
                                      fabricshm::round_up(more, kNodeUnitBytes) / kNodeUnitBytes);
}
static_assert(kNameInFirst + (kMaxUnits - 1) * kNodeUnitBytes >= kNodeNameBytes);

// The compiler may not move stores of shared memory past this. The other side is the next server,
// which maps the file after this process has ended: what the processor reorders it never observes.
void order() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

std::int64_t wall_clock_ns() noexcept {
    return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// splitmix64's finalizer.
std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) noexcept {
    std::uint64_t mixed = hash ^ (value + 0x9e3779b97f4a7c15U + (hash << 6) + (hash >> 2));
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
}

std::uint64_t mix_hash(std::uint64_t hash, std::string_view bytes) noexcept {
    hash = mix_hash(hash, bytes.size());
    for (; !bytes.empty(); bytes.remove_prefix(std::min<std::size_t>(8, bytes.size()))) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data(), std::min<std::size_t>(8, bytes.size()));
        hash = mix_hash(hash, word);
    }
    return hash;
}

std::uint64_t inode_number(std::uint64_t parent, std::string_view name,
                           const NodeFacts& facts) noexcept {
    const std::uint64_t inode = mix_hash(mix_hash(parent, name), facts.is_folder ? 0 : facts.stamp);
    return std::max<std::uint64_t>(inode >> 1,
                                   2);  // positive also as a signed number; 1 is the root
}

NodeTable::NodeTable(std::span<std::byte> bytes)
    : head_(std::launder(reinterpret_cast<Head*>(bytes.data()))),
      buckets_(
          std::launder(reinterpret_cast<std::uint32_t*>(bytes.data() + fabricshm::kPageBytes))),
      units_(bytes.data() + fabricshm::kPageBytes + kNodeBuckets * sizeof(std::uint32_t)) {
    static_assert(sizeof(Record) == kNodeUnitBytes && sizeof(Head) <= fabricshm::kPageBytes);
    FABRIC_CHECK(bytes.size() == kNodeTableBytes);
    if (head_->cursor != 0) return;
    Record& root = at(kRootNode);
    root.units = 1;
    root.is_folder = 1;
    root.inode = kRootNode;
    root.mtime_ns = wall_clock_ns();
    root.references = 1;  // never freed
    order();
    head_->cursor = kRootNode + 1;
}

NodeTable::Record& NodeTable::at(NodeNumber node) const noexcept {
    return *std::launder(reinterpret_cast<Record*>(units_ + node * kNodeUnitBytes));
}

// Nothing when the number is none that was given out. A number in the middle of a run is the
// kernel's mistake, and could be any bytes of a name: what is read there stays inside the table.
NodeTable::Record* NodeTable::record(NodeNumber node) const noexcept {
    if (node == 0 || node >= head_->cursor) return nullptr;
    Record& found = at(node);
    const bool whole = found.units >= 1 && found.units <= kMaxUnits &&
                       node + found.units <= kNodeUnits && found.name_bytes <= kNodeNameBytes;
    return whole && found.references != 0 ? &found : nullptr;
}

// It goes on in the units behind the first.
std::string_view NodeTable::name_of(NodeNumber node) const noexcept {
    const std::byte* const first = units_ + node * kNodeUnitBytes + offsetof(Record, name);
    return {reinterpret_cast<const char*>(first), at(node).name_bytes};
}

Node NodeTable::node_of(NodeNumber number, const Record& record) const {
    Node node;
    node.number = number;
    node.parent = record.parent;
    node.generation = record.generation;
    node.inode = record.inode;
    node.facts = {record.is_folder != 0, record.stamp, record.bytes, record.mtime_ns};
    node.name = name_of(number);
    return node;
}

NodeNumber NodeTable::allocate(std::uint32_t units) noexcept {
    if (const std::uint32_t first = head_->free[units]; first != 0) {
        // Taken off the list before it is written: a death here loses it and breaks nothing.
        head_->free[units] = at(first).next;
        order();
        return first;
    }
    if (head_->cursor + units > kNodeUnits) return 0;
    const NodeNumber node = head_->cursor;
    at(node).units = static_cast<std::uint16_t>(units);
    order();
    head_->cursor += units;
    order();
    return node;
}

Result<Node> NodeTable::take(NodeNumber parent, std::string_view name, const NodeFacts& facts) {
    const std::scoped_lock hold(lock_);
    Record* const above = record(parent);
    if (above == nullptr) return Error{Errc::kNotFound, 0, "find parent"};
    if (name.size() > kNodeNameBytes) return Error{Errc::kInvalid, 0, "name of node"};
    const std::uint64_t inode = inode_number(above->inode, name, facts);
    std::uint32_t& bucket = buckets_[inode % kNodeBuckets];
    for (std::uint32_t number = bucket; number != 0; number = at(number).next) {
        Record& found = at(number);
        if (found.inode != inode || found.parent != parent || found.is_folder != facts.is_folder ||
            name_of(number) != name) {
            continue;
        }
        if (!facts.is_folder && found.stamp != facts.stamp) continue;
        ++found.references;
        return node_of(number, found);
    }
    const NodeNumber number = allocate(units_for(name.size()));
    if (number == 0) return Error{Errc::kNoMemory, 0, "make node"};
    Record& made = at(number);
    made.generation += 1;
    made.name_bytes = static_cast<std::uint16_t>(name.size());
    made.parent = static_cast<std::uint32_t>(parent);
    made.inode = inode;
    made.stamp = facts.is_folder ? 0 : facts.stamp;
    made.bytes = facts.bytes;
    made.mtime_ns = facts.mtime_ns;
    made.is_folder = facts.is_folder ? 1 : 0;
    std::memcpy(units_ + number * kNodeUnitBytes + offsetof(Record, name), name.data(),
                name.size());
    made.next = bucket;
    ++above->references;  // a death behind this keeps the parent for ever
    made.references = 1;
    order();
    bucket = static_cast<std::uint32_t>(number);
    ++head_->count;
    return node_of(number, made);
}

// Out of its bucket first: what can be found is whole.
void NodeTable::drop(NodeNumber node) noexcept {
    Record& gone = at(node);
    std::uint32_t* link = &buckets_[gone.inode % kNodeBuckets];
    while (*link != 0 && *link != node) link = &at(*link).next;
    if (*link == node) *link = gone.next;
    order();
    gone.references = 0;
    gone.next = head_->free[gone.units];
    order();
    head_->free[gone.units] = static_cast<std::uint32_t>(node);
    --head_->count;
}

void NodeTable::release(NodeNumber node, std::uint64_t references) noexcept {
    const std::scoped_lock hold(lock_);
    for (Record* held = record(node); held != nullptr && node != kRootNode; held = record(node)) {
        const NodeNumber parent = held->parent;
        // More than there are: requests that a dead server had answered and not counted.
        held->references -= std::min(held->references, references);
        if (held->references != 0) return;
        drop(node);
        node = parent;
        references = 1;
    }
}

Result<Node> NodeTable::find(NodeNumber node) const {
    const std::scoped_lock hold(lock_);
    const Record* const found = record(node);
    if (found == nullptr) return Error{Errc::kNotFound, 0, "find node"};
    return node_of(node, *found);
}

Result<std::string> NodeTable::path_of(NodeNumber node) const {
    const std::scoped_lock hold(lock_);
    std::string path;
    for (int depth = 0; node != kRootNode; ++depth) {
        const Record* const found = record(node);
        if (found == nullptr || depth == kMaxDepth)
            return Error{Errc::kNotFound, 0, "path of node"};
        path.insert(0, std::string(name_of(node)) + (path.empty() ? "" : "/"));
        node = found->parent;
    }
    return path;
}

void NodeTable::set_listing(NodeNumber folder, std::uint64_t stamp,
                            std::int64_t mtime_ns) noexcept {
    const std::scoped_lock hold(lock_);
    Record* const found = record(folder);
    if (found == nullptr || found->is_folder == 0) return;
    if (mtime_ns != 0) found->mtime_ns = mtime_ns;
    found->stamp = stamp;
}

std::vector<Node> NodeTable::listed_folders() const {
    const std::scoped_lock hold(lock_);
    std::vector<Node> folders;
    for (NodeNumber node = kRootNode; node < head_->cursor;
         node += std::max<unsigned>(1, at(node).units)) {
        const Record* const found = record(node);
        if (found != nullptr && found->is_folder != 0 && found->stamp != 0) {
            folders.push_back(node_of(node, *found));
        }
    }
    return folders;
}

std::vector<Node> NodeTable::children_of(NodeNumber folder) const {
    const std::scoped_lock hold(lock_);
    std::vector<Node> children;
    for (NodeNumber node = kRootNode + 1; node < head_->cursor;
         node += std::max<unsigned>(1, at(node).units)) {
        const Record* const found = record(node);
        if (found != nullptr && found->parent == folder) children.push_back(node_of(node, *found));
    }
    return children;
}

std::uint64_t NodeTable::count() const noexcept {
    const std::scoped_lock hold(lock_);
    return head_->count;
}

}  // namespace fabricd
