// What a group keeps of its tree (domains.hpp), for small operations and for arrivals along it.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "libfabricshm/collective/domains.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

class Barrier;

/// Offsets of a rank's buffers from the arena's start, or kNoOffset.
struct BuffersShown {
    // Without initial values: every arrival has an array of these for all possible ranks on its
    // stack, 4 KiB that would be cleared for nothing.
    std::uint64_t input;
    std::uint64_t output;
    bool operator==(const BuffersShown&) const = default;
};

struct TreeState {
    TreeState(Tree of, int rank, const GroupLayout& layout, std::byte* block);

    /// A rank right below this one.
    struct Child {
        int rank;
        TreePost* post;
        Bytes ahead;  // ranks between this one and the first whose values the post has
        Bytes size;   // ranks whose values it has
    };

    Tree tree;
    std::vector<Child> children;
    int parent;  // -1: none
    Bytes size;  // ranks from this one down
    TreePost* post;
    TreeBuffers* buffers;  // [parity * world + position]
    std::size_t world;

    // What this rank has of the ranks from it down, by position; and where the value of each rank
    // is in there, when those are `stride` bytes apart.
    std::vector<std::byte> values;
    std::vector<const void*> sources;
    Bytes stride = 0;
    Bytes least;  // bytes of a value that are added up at least; see compute()

    // Programs call with the same buffers over and over. The last arrival on which all buffers were
    // found good, if it was the last of all: what this rank called and showed, and what it found.
    struct Arrival {
        bool stands = false;
        std::uint64_t signature = 0;
        BuffersShown shown{};
        bool all_in_arena = false;
        bool posted_early = false;
        std::vector<std::byte*> inputs;
        std::vector<std::byte*> outputs;
    };
    Arrival last;
    BuffersShown written[2]{};  // by this rank into `buffers`, by parity

    TreeBuffers& buffers_of(int rank, std::size_t parity) const noexcept {
        return buffers[parity * world +
                       static_cast<std::size_t>(tree.positions[static_cast<std::size_t>(rank)])];
    }
};

/// The tree of a group whose ranks have all announced themselves.
std::unique_ptr<TreeState> make_tree(const Barrier& barrier, const GroupLayout& layout,
                                     std::byte* block);

}  // namespace fabricshm
