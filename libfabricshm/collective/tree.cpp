// Small operations of many ranks, along the tree of their domains (domains.hpp).
//
// Up: every rank posts to its parent what it has of all ranks from itself down, once its children
// have posted. Values are handed on, not sums: so the root, which is rank 0, adds them in the order
// of ranks, as every other engine does, wherever the ranks happen to run. Down: the root releases
// its children with the result, and each of them its own.
//
// One rank thus polls the lines of its children and of its parent. With 64 ranks that is at most 15
// of them, where each polled 63 before, and 126 lines cross in all instead of 4,032.
//
// Posts and releases have one place each, used in every operation. A rank posts again after it was
// released, so after its parent had posted itself, and read what was here; a rank releases again
// after all its children have posted again, so after they have read what was here.

#include "libfabricshm/collective/tree.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "kernels/reduce.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

namespace {

// A kernel spends less on a whole register than on a part of one.
constexpr Bytes kMaxRegister = 64;

Bytes register_bytes() noexcept {
    const std::string_view isa = kernels::isa_name();
    return isa == "avx512" ? kMaxRegister : isa == "avx2" ? 32 : 0;
}

// The lines of a post behind the first are asked for before any post is waited for.
void fetch_post(const TreePost& post, Bytes bytes) noexcept {
    const auto* line = reinterpret_cast<const std::byte*>(&post);
    for (Bytes at = kCacheLine; at < offsetof(TreePost, data) + bytes; at += kCacheLine) {
        __builtin_prefetch(line + at);
    }
}

// A post that is not there at once: spins on the flag, then sleeps on the clock, which is raised
// after the flag. Not a part of the way of those that are there.
[[gnu::noinline]] Result<void> await_post(Operation& operation, int child, const TreePost& post,
                                          std::uint64_t flag) {
    Barrier& barrier = operation.barrier();
    const std::uint64_t spins = barrier.spins_for(child);
    for (std::uint64_t spin = 0; spin < spins; ++spin) {
        barrier.view().acquire(TouchPoint::kTreeRead, &post, kCacheLine, child);
        // Acquire, here and below, pairs with the release in post_up().
        if (post.flag.load(std::memory_order_acquire) == flag) return {};
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    FABRIC_TRY_VOID(barrier.wait(child, flag, operation.call.deadline));
    barrier.view().acquire(TouchPoint::kTreeRead, &post, kCacheLine, child);
    if (post.flag.load(std::memory_order_acquire) == flag) return {};
    // The clock came without the flag: the child took part by another route.
    return Error{Errc::kMismatch, child, "collective"};
}

// Collects what the ranks below posted behind this rank's own value, by position.
Result<void> collect(Operation& operation, Bytes stride, std::uint64_t flag) {
    TreeState& tree = *operation.group.tree;
    const Visibility& view = operation.barrier().view();
    const std::uint64_t called = operation.shown_signature();
    for (const TreeState::Child& child : tree.children) {
        fetch_post(*child.post, child.size * stride);
    }
    for (const TreeState::Child& child : tree.children) {
        const TreePost& post = *child.post;
        view.acquire(TouchPoint::kTreeRead, &post, kCacheLine, child.rank);
        if (post.flag.load(std::memory_order_acquire) != flag) {
            FABRIC_TRY_VOID(await_post(operation, child.rank, post, flag));
        }
        if (post.called != called) return Error{Errc::kMismatch, child.rank, "collective"};
        const Bytes bytes = child.size * stride;
        if (bytes > sizeof post.data) {
            view.acquire(TouchPoint::kTreeRead, &post + 1, bytes - sizeof post.data, child.rank);
        }
        std::memcpy(tree.values.data() + child.ahead * stride, post.data, bytes);
    }
    return {};
}

void post_up(Operation& operation, const std::byte* data, Bytes bytes,
             std::uint64_t flag) noexcept {
    const Visibility& view = operation.barrier().view();
    TreePost& post = *operation.group.tree->post;
    view.step(PoolStep::kSignal);
    post.called = operation.shown_signature();
    if (bytes != 0) std::memcpy(post.data, data, bytes);
    // Release: a rank that sees the flag sees what it announces.
    post.flag.store(flag, std::memory_order_release);
    view.publish(TouchPoint::kTree, &post, tree_lines_for(bytes) * kCacheLine);
}

// At the root: what all get, from the values of all.
void compute(const Operation& operation, Bytes stride, std::byte* result) {
    TreeState& tree = *operation.group.tree;
    if (operation.call.kind != Kind::kAllreduce || stride == 0) return;
    if (tree.stride != stride) {
        for (std::size_t rank = 0; rank < tree.sources.size(); ++rank) {
            const auto position = static_cast<Bytes>(tree.tree.positions[rank]);
            tree.sources[rank] = tree.values.data() + position * stride;
        }
        tree.stride = stride;
    }
    void* destination = result;
    // Small values with their neighbours in the array; what comes of those is not used.
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = tree.sources.data();
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = std::max(stride, tree.least) / kernels::size_of(job.type);
    kernels::reduce(job);
}

// Hands `result` to the ranks below; what is in it was released to this rank, or computed by it.
void hand_down(Operation& operation, const std::byte* result, Bytes bytes,
               std::uint64_t flag) noexcept {
    Barrier& barrier = operation.barrier();
    TreeRelease& release = barrier.tree_words(operation.rank()).release;
    if (operation.group.tree->children.empty()) return;
    release.called = operation.shown_signature();
    if (bytes != 0) std::memcpy(release.data, result, bytes);
    const Bytes all = offsetof(TreeRelease, data) + bytes;
    if (all > kCacheLine) {
        const std::byte* second = reinterpret_cast<std::byte*>(&release) + kCacheLine;
        barrier.view().publish(TouchPoint::kTree, second, all - kCacheLine);
    }
    barrier.release(flag);
}

// Of a scan the values of all ranks come down, and each rank reduces those up to its own.
void deliver_scan(const Operation& operation, const std::byte* values, Bytes stride) noexcept {
    const int count = sources_of_scan(operation, operation.rank());
    if (count == 0 || stride == 0) return;
    const std::vector<int>& positions = operation.group.tree->tree.positions;
    std::array<const void*, kWorldMax> sources;
    for (int rank = 0; rank < count; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        sources[at] = values + static_cast<Bytes>(positions[at]) * stride;
    }
    void* destination = operation.call.output;
    kernels::ReduceJob job = reduce_job(operation);
    job.sources = sources.data();
    job.source_count = count;
    job.destinations = &destination;
    job.destination_count = 1;
    job.count = stride / kernels::size_of(job.type);
    kernels::reduce(job);
}

// Puts what came down where the caller wants it.
void deliver(const Operation& operation, const std::byte* result, Bytes stride) noexcept {
    const Call& call = operation.call;
    if (call.kind == Kind::kAllreduce && stride != 0) std::memcpy(call.output, result, stride);
    if (is_scan(call.kind)) return deliver_scan(operation, result, stride);
    if (call.kind != Kind::kAllGather) return;
    const Parts& parts = operation.parts;
    const std::vector<int>& positions = operation.group.tree->tree.positions;
    for (int rank = 0; rank < operation.world(); ++rank) {
        const Bytes bytes = parts.bytes(rank);
        const auto position = static_cast<Bytes>(positions[static_cast<std::size_t>(rank)]);
        if (bytes == 0) continue;
        std::memcpy(call.output + parts.offset(rank), result + position * stride, bytes);
    }
}

Result<void> run_along_tree(Operation& operation, std::uint64_t flag) {
    TreeState& tree = *operation.group.tree;
    Barrier& barrier = operation.barrier();
    const Call& call = operation.call;
    const Bytes stride = operation.largest_part;
    const Bytes mine = operation.parts.bytes(operation.rank());
    const bool collects = !tree.children.empty();
    if (collects && mine != 0) std::memcpy(tree.values.data(), call.input, mine);
    if (collects) FABRIC_TRY_VOID(collect(operation, stride, flag));
    operation.check_harm();
    FAULT_POINT("tree.before_post");
    if (tree.parent >= 0) {
        // A rank with none below posts from where its value is; an uneven part may be shorter.
        const std::byte* data = collects ? tree.values.data() : call.input;
        post_up(operation, data, collects ? tree.size * stride : mine, flag);
    }
    barrier.signal(flag);
    FAULT_POINT("tree.posted");

    const bool gathers = call.kind == Kind::kAllGather || is_scan(call.kind);
    alignas(kCacheLine) std::byte computed[kMaxTreeBytes];
    const std::byte* result = gathers ? tree.values.data() : computed;
    if (tree.parent < 0) {
        compute(operation, stride, computed);
    } else {
        FABRIC_TRY_VOID(barrier.await_release(flag, call.deadline));
        const TreeRelease& above = barrier.tree_words(tree.parent).release;
        if (above.called != operation.shown_signature()) {
            return Error{Errc::kMismatch, tree.parent, "collective"};
        }
        result = above.data;
    }
    barrier.saw_all(flag);
    FAULT_POINT("tree.released");
    hand_down(operation, result, gathers ? stride * static_cast<Bytes>(operation.world()) : stride,
              flag);
    deliver(operation, result, stride);
    return {};
}

}  // namespace

TreeState::TreeState(Tree of, int rank, const GroupLayout& layout, std::byte* block)
    : tree(std::move(of)),
      buffers(reinterpret_cast<TreeBuffers*>(block + layout.tree_buffers)),
      world(static_cast<std::size_t>(layout.world)),
      values(world * layout.tree_bytes + kMaxRegister),
      sources(world),
      least(register_bytes()) {
    const auto node = [&](int of_rank) -> const TreeNode& {
        return tree.nodes[static_cast<std::size_t>(of_rank)];
    };
    const auto post_of = [&](int of_rank) {
        const Bytes place =
            static_cast<Bytes>(node(of_rank).height) * static_cast<Bytes>(layout.world) +
            static_cast<Bytes>(node(of_rank).first);
        return reinterpret_cast<TreePost*>(block + layout.tree_posts) + place * layout.tree_lines;
    };
    last.inputs.resize(world);
    last.outputs.resize(world);
    parent = node(rank).parent;
    size = static_cast<Bytes>(node(rank).size);
    post = post_of(rank);
    for (const int child : node(rank).children) {
        children.push_back({child, post_of(child),
                            static_cast<Bytes>(node(child).first - node(rank).first),
                            static_cast<Bytes>(node(child).size)});
    }
}

std::unique_ptr<TreeState> make_tree(const Barrier& barrier, const GroupLayout& layout,
                                     std::byte* block) {
    std::vector<RankPlace> places;
    for (int rank = 0; rank < layout.world; ++rank) {
        const TreeWords& words = barrier.tree_words(rank);
        places.push_back({words.node, words.cache});
    }
    return std::make_unique<TreeState>(build_tree(places), barrier.rank(), layout, block);
}

Result<void> run_tree(Operation& operation) {
    FABRIC_TRY_VOID(enter(operation));
    show_signature(operation);
    const std::uint64_t flag = operation.next++;
    const auto result = run_along_tree(operation, flag);
    if (!result.ok()) return operation.barrier().name_late(result.error(), flag);
    return {};
}

}  // namespace fabricshm
