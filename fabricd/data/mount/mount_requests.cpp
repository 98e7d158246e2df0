#include "fabricd/data/mount/mount_requests.hpp"

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;

namespace {

// An inode is one version, so its attributes never change; a name may lead to another inode, and
// the kernel is notified. The limit is for notices that were lost.
constexpr double kAttributeSeconds = 86'400;
constexpr double kEntrySeconds = 600;
constexpr std::size_t kMaxRead = fabricshm::kMiB;

MountRequests& server_of(fuse_req_t request) {
    return *static_cast<MountRequests*>(fuse_req_userdata(request));
}

TimePoint deadline_of(const MountRequests& server) {
    return fabricshm::deadline_after(Clock::now(), server.options.timeout);
}

// What people have to hear of: a source that fails, at most once a second.
void log_failure(MountRequests& server, NodeNumber node, const Error& error) {
    const std::string reason = fabricshm::explanation_of(error);
    const std::int64_t now = fabricshm::monotonic_ns();
    std::int64_t next = server.next_line_ns.load(std::memory_order_relaxed);
    // Relaxed: the word orders nothing, one of the threads gets it.
    if (now < next || !server.next_line_ns.compare_exchange_strong(next, now + 1'000'000'000,
                                                                   std::memory_order_relaxed)) {
        return;
    }
    const auto path = server.nodes.path_of(node);
    fabricshm::log(fabricshm::LogLevel::kWarning, "fabric-mount: /%s: %s",
                   path.ok() ? path->c_str() : "?", reason.c_str());
}

void fail(fuse_req_t request, NodeNumber node, const Error& error) {
    MountRequests& server = server_of(request);
    const int code = errno_of(error.code);
    if (code == EIO) log_failure(server, node, error);
    if (error.code == Errc::kChanged && server.changed != nullptr) server.changed(server.watch);
    fuse_reply_err(request, code);
}

struct stat status_of(const MountRequests& server, const NodeFacts& facts, std::uint64_t inode) {
    struct stat status {};
    status.st_ino = inode;
    status.st_mode = (facts.is_folder ? S_IFDIR | 0555U : S_IFREG | 0444U) & ~server.options.mask;
    status.st_nlink = facts.is_folder ? 2 : 1;
    status.st_uid = server.user;
    status.st_gid = server.group;
    status.st_size = static_cast<off_t>(facts.bytes);
    status.st_blksize = 128 * 1024;
    status.st_blocks = static_cast<blkcnt_t>((facts.bytes + 511) / 512);
    status.st_mtim = {facts.mtime_ns / 1'000'000'000, facts.mtime_ns % 1'000'000'000};
    status.st_ctim = status.st_mtim;
    status.st_atim = status.st_mtim;
    return status;
}

fuse_entry_param parameters_of(const MountRequests& server, const Node& node) {
    fuse_entry_param parameters{};
    parameters.ino = node.number;
    parameters.generation = node.generation;
    parameters.attr = status_of(server, node.facts, node.inode);
    parameters.attr_timeout = kAttributeSeconds;
    parameters.entry_timeout = kEntrySeconds;
    return parameters;
}

// A folder has the time at which it was first looked up, and later those of its changes.
Result<Node> take(MountRequests& server, NodeNumber parent, MountEntry& entry) {
    if (entry.facts.is_folder) entry.facts.mtime_ns = wall_clock_ns();
    return server.nodes.take(parent, entry.name, entry.facts);
}

Result<Node> look_up(MountRequests& server, NodeNumber parent, const char* name) {
    FABRIC_TRY(const auto listing, server.listings.of(parent, deadline_of(server)));
    const auto index = listing->find(name);
    if (!index) return Error{Errc::kNotFound, 0, "look up"};
    FABRIC_TRY(MountEntry entry, listing->entry(*index));
    return take(server, parent, entry);
}

void do_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
    MountRequests& server = server_of(request);
    const auto node = look_up(server, parent, name);
    if (!node.ok()) return fail(request, parent, node.error());
    const auto parameters = parameters_of(server, *node);
    // Not delivered: the reader was killed, or had the answer of an earlier server.
    if (fuse_reply_entry(request, &parameters) != 0) server.nodes.release(node->number, 1);
}

void do_forget(fuse_req_t request, fuse_ino_t node, std::uint64_t references) {
    server_of(request).nodes.release(node, references);
    fuse_reply_none(request);
}

void do_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
    for (std::size_t i = 0; i < count; ++i) {
        server_of(request).nodes.release(forgets[i].ino, forgets[i].nlookup);
    }
    fuse_reply_none(request);
}

void do_getattr(fuse_req_t request, fuse_ino_t number, fuse_file_info*) {
    MountRequests& server = server_of(request);
    const auto node = server.nodes.find(number);
    if (!node.ok()) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    const struct stat status = status_of(server, node->facts, node->inode);
    fuse_reply_attr(request, &status, kAttributeSeconds);
}

// Asked once: the kernel then opens by itself, keeps the pages, and asks for no release either.
void do_open(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
    if (!server_of(request).options.answers_open) {
        fuse_reply_err(request, ENOSYS);
        return;
    }
    info->keep_cache = 1;
    fuse_reply_open(request, info);
}

void do_opendir(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
    fuse_reply_err(request, ENOSYS);
}

// The kernel copies out of these pages. Where one is not in this process's page table yet, a kill
// at that moment would make it fail the read; here nothing happens but that the server dies.
void touch(std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += fabricshm::kPageBytes) {
        [[maybe_unused]] const volatile std::byte byte = bytes[at];
    }
    if (!bytes.empty()) [[maybe_unused]]
        const volatile std::byte last = bytes.back();
}

// One for each thread: copies are made into it, where a view can't be had.
std::span<std::byte> own_room() {
    thread_local std::vector<std::byte> room(kMaxRead);
    return room;
}

void do_read(fuse_req_t request, fuse_ino_t number, std::size_t bytes, off_t offset,
             fuse_file_info*) {
    MountRequests& server = server_of(request);
    const auto node = server.nodes.find(number);
    if (!node.ok()) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    if (node->facts.is_folder) {
        fuse_reply_err(request, EISDIR);
        return;
    }
    const auto deadline = deadline_of(server);
    const Bytes from = static_cast<Bytes>(offset);
    const Bytes left = from < node->facts.bytes ? node->facts.bytes - from : 0;
    const std::size_t wanted = std::min<Bytes>({bytes, left, kMaxRead});
    if (wanted == 0) {
        fuse_reply_buf(request, nullptr, 0);
        return;
    }
    const auto place = server.listings.place_of(*node, deadline);
    if (!place.ok()) return fail(request, number, place.error());
    const auto got = place->listing->read(place->index, from, own_room().first(wanted), deadline);
    if (!got.ok()) return fail(request, number, got.error());
    touch(got->bytes);
    fuse_reply_buf(request, reinterpret_cast<const char*>(got->bytes.data()), got->bytes.size());
}

// The entries that fit into a reply, and the nodes that the kernel gets with them.
struct FolderReply {
    MountRequests& server;
    fuse_req_t request;
    bool with_nodes = false;
    std::vector<char> bytes;
    std::size_t used = 0;
    std::vector<NodeNumber> taken = {};

    bool add(const char* name, const NodeFacts& facts, std::uint64_t inode, std::uint64_t cookie,
             const Node* node);
};

bool FolderReply::add(const char* name, const NodeFacts& facts, std::uint64_t inode,
                      std::uint64_t cookie, const Node* node) {
    char* const to = bytes.data() + used;
    const std::size_t room = bytes.size() - used;
    const auto next = static_cast<off_t>(cookie);
    std::size_t size = 0;
    if (with_nodes) {
        // Without a node, as "." and "..", the kernel takes the type alone.
        fuse_entry_param parameters{};
        parameters.attr = status_of(server, facts, inode);
        if (node != nullptr) parameters = parameters_of(server, *node);
        size = fuse_add_direntry_plus(request, to, room, name, &parameters, next);
    } else {
        const struct stat status = status_of(server, facts, inode);
        size = fuse_add_direntry(request, to, room, name, &status, next);
    }
    if (size > room) return false;
    used += size;
    return true;
}

// "." and "..", then the entries behind `cookie`.
Result<void> fill(FolderReply& reply, const Node& folder, const MountListing& listing,
                  std::uint64_t cookie) {
    const NodeFacts kFolder{true, 0, 0, 0};
    if (cookie < 1 && !reply.add(".", kFolder, folder.inode, 1, nullptr)) return {};
    if (cookie < 2 && !reply.add("..", kFolder, folder.inode, 2, nullptr)) return {};
    const auto& steps = listing.walk();
    auto step =
        std::upper_bound(steps.begin(), steps.end(), std::max<std::uint64_t>(cookie, 2),
                         [](std::uint64_t at, const WalkStep& one) { return at < one.cookie; });
    for (; step != steps.end(); ++step) {
        FABRIC_TRY(MountEntry entry, listing.entry(step->index));
        const std::uint64_t inode = inode_number(folder.inode, entry.name, entry.facts);
        if (!reply.with_nodes) {
            if (!reply.add(entry.name.c_str(), entry.facts, inode, step->cookie, nullptr))
                return {};
            continue;
        }
        FABRIC_TRY(const Node node, take(reply.server, folder.number, entry));
        if (!reply.add(entry.name.c_str(), entry.facts, inode, step->cookie, &node)) {
            reply.server.nodes.release(node.number, 1);
            return {};
        }
        reply.taken.push_back(node.number);
    }
    return {};
}

void read_folder(fuse_req_t request, fuse_ino_t number, std::size_t size, off_t cookie,
                 bool with_nodes) {
    MountRequests& server = server_of(request);
    const auto node = server.nodes.find(number);
    if (!node.ok()) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    const auto listing = server.listings.of(number, deadline_of(server));
    if (!listing.ok()) return fail(request, number, listing.error());
    FolderReply reply{server, request, with_nodes,
                      std::vector<char>(std::min<std::size_t>(size, kMaxRead))};
    const auto filled = fill(reply, *node, **listing, static_cast<std::uint64_t>(cookie));
    int failed = 0;
    if (!filled.ok() && reply.used == 0) {
        fail(request, number, filled.error());
        failed = 1;
    } else {
        failed = fuse_reply_buf(request, reply.bytes.data(), reply.used);
    }
    if (failed == 0) return;
    for (const NodeNumber taken : reply.taken) server.nodes.release(taken, 1);
}

void do_readdir(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t cookie,
                fuse_file_info*) {
    read_folder(request, node, size, cookie, false);
}

void do_readdirplus(fuse_req_t request, fuse_ino_t node, std::size_t size, off_t cookie,
                    fuse_file_info*) {
    read_folder(request, node, size, cookie, true);
}

void do_statfs(fuse_req_t request, fuse_ino_t) {
    struct statvfs status {};
    status.f_bsize = fabricshm::kPageBytes;
    status.f_frsize = fabricshm::kPageBytes;
    status.f_files = server_of(request).nodes.count();
    status.f_namemax = kNodeNameBytes;
    status.f_flag = ST_RDONLY | ST_NOSUID | ST_NODEV;
    fuse_reply_statfs(request, &status);
}

void do_init(void*, fuse_conn_info* connection) {
    // Replies are written from memory: splicing from the arena was slower (docs/data.md).
    connection->want &=
        ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    connection->max_background = kMountSlots;
    connection->congestion_threshold = kMountSlots * 3 / 4;
}

}  // namespace

int errno_of(Errc code) noexcept {
    switch (code) {
        case Errc::kNotFound:
            return ENOENT;
        case Errc::kDenied:
            return EACCES;
        case Errc::kChanged:
            return ESTALE;
        case Errc::kNoMemory:
            return ENOMEM;
        default:
            return EIO;
    }
}

// What is not here is reported to the kernel as missing, once: writing, locks, attributes of other
// kinds.
const fuse_lowlevel_ops& mount_operations() noexcept {
    static const fuse_lowlevel_ops kOperations = [] {
        fuse_lowlevel_ops operations{};
        operations.init = do_init;
        operations.lookup = do_lookup;
        operations.forget = do_forget;
        operations.forget_multi = do_forget_multi;
        operations.getattr = do_getattr;
        operations.open = do_open;
        operations.opendir = do_opendir;
        operations.read = do_read;
        operations.readdir = do_readdir;
        operations.readdirplus = do_readdirplus;
        operations.statfs = do_statfs;
        return operations;
    }();
    return kOperations;
}

}  // namespace fabricd
