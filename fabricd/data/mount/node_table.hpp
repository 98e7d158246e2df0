// NodeTable: the files and folders that the kernel knows of the mount, by node number. It lies in
// the handover, so that a number means the same to the next server.
//
// A node is a run of 1 to 5 units of 64 bytes: its record, which the name goes on behind. A node's
// number is that of its first unit; 1 is the root. A server may die between any two stores: the
// order of each change leaves a chain that can be walked and, at worst, a node that is never freed.

#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Result;

using NodeNumber = std::uint64_t;
inline constexpr NodeNumber kRootNode = 1;

inline constexpr std::size_t kNodeUnits = std::size_t{1} << 24;  // 1 GiB where all are used
inline constexpr std::size_t kNodeBuckets = std::size_t{1} << 21;
inline constexpr std::size_t kNodeUnitBytes = 64;
inline constexpr Bytes kNodeTableBytes =
    fabricshm::kPageBytes + kNodeBuckets * sizeof(std::uint32_t) + kNodeUnits * kNodeUnitBytes;
inline constexpr std::size_t kNodeNameBytes = 255;

/// What a node says of its file or folder.
struct NodeFacts {
    bool is_folder = false;
    /// Of a file its version: another one is another node. Of a folder that of its listing when it
    /// was last compared, 0 before the first.
    std::uint64_t stamp = 0;
    Bytes bytes = 0;
    std::int64_t mtime_ns = 0;
};

struct Node {
    NodeNumber number = 0;
    NodeNumber parent = 0;
    std::uint32_t generation = 0;  // of the number
    std::uint64_t inode = 0;  // for people: of parent, name and version, the same in every server
    NodeFacts facts;
    std::string name;
};

/// Thread-safe in one server; two servers at once may not have it.
class NodeTable {
  public:
    /// `bytes` as they were left, or zeros.
    explicit NodeTable(std::span<std::byte> bytes);

    /// The node of this version of `parent`'s entry, made when there is none, with one reference
    /// more. kNoMemory: the table is full. kNotFound: there is no such parent.
    Result<Node> take(NodeNumber parent, std::string_view name, const NodeFacts& facts);
    /// Returns references of the kernel; the last one frees the node.
    void release(NodeNumber node, std::uint64_t references) noexcept;

    /// kNotFound: no node has this number, which the kernel should not ask for.
    Result<Node> find(NodeNumber node) const;
    /// Its names from the root on, with '/' between; "" is the root.
    Result<std::string> path_of(NodeNumber node) const;

    /// Of a folder: its listing is this from now on. `mtime_ns` 0 leaves that as it is.
    void set_listing(NodeNumber folder, std::uint64_t stamp, std::int64_t mtime_ns) noexcept;

    /// Folders whose listing is known, and the files and folders below one of them.
    std::vector<Node> listed_folders() const;
    std::vector<Node> children_of(NodeNumber folder) const;

    /// How many there are, without the root.
    std::uint64_t count() const noexcept;

  private:
    struct Head;
    struct Record;

    Record* record(NodeNumber node) const noexcept;
    Record& at(NodeNumber node) const noexcept;
    std::string_view name_of(NodeNumber node) const noexcept;
    Node node_of(NodeNumber number, const Record& record) const;
    NodeNumber allocate(std::uint32_t units) noexcept;
    void drop(NodeNumber node) noexcept;

    mutable std::mutex lock_;
    Head* head_;
    std::uint32_t* buckets_;
    std::byte* units_;
};

/// The inode number that is shown of an entry.
std::uint64_t inode_number(std::uint64_t parent, std::string_view name,
                           const NodeFacts& facts) noexcept;

/// Since 1970.
std::int64_t wall_clock_ns() noexcept;

/// Mixes `value` into `hash`; for names and versions, not against an adversary.
std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) noexcept;
std::uint64_t mix_hash(std::uint64_t hash, std::string_view bytes) noexcept;

}  // namespace fabricd
