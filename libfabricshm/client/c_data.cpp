// The C ABI: data.

#include <algorithm>
#include <cstring>
#include <mutex>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/data_handle.hpp"
#include "libfabricshm/client/data_subscription.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/client/socket_path.hpp"
#include "libfabricshm/include/fabricshm/data.h"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

static_assert(FABRICSHM_DATA_CHUNK == kDataChunkBytes);
static_assert(FABRICSHM_DATA_FOLDER == kEntryFolder);
static_assert(FABRICSHM_DATA_RECURSIVE == proto::kDataListRecursive);
static_assert(FABRICSHM_DATA_FILE == DataSet::kOneFile);
static_assert(FABRICSHM_DATA_FABRIC_SAMPLER == proto::kDataFabricSampler);
static_assert(FABRICSHM_DATA_DISTRIBUTED_SAMPLER == proto::kDataDistributedSampler);

// In the service, and in a path of the system.
constexpr std::size_t kMaxPath = 4096;

Duration timeout_of(const DataClient& client, std::int64_t timeout_ms) noexcept {
    if (timeout_ms == FABRICSHM_TIMEOUT_DEFAULT) return client.timeout();
    return std::chrono::milliseconds(std::min(timeout_ms, proto::kTimeoutMsMax));
}

TimePoint deadline_of(const DataClient& client, std::int64_t timeout_ms) noexcept {
    return deadline_from_now(timeout_of(client, timeout_ms));
}

int check_path(const char* function, const char* path) {
    if (path == nullptr) return refuse("%s: path is NULL", function);
    const std::size_t length = ::strnlen(path, kMaxPath);
    if (length == 0 || length == kMaxPath || *path != '/') {
        return refuse("%s: path has to begin with '/' and to be shorter than %zu bytes", function,
                      kMaxPath);
    }
    return FABRICSHM_OK;
}

// "file 'n01/x.jpeg' of /images/train", or its number when there is none of that.
int fail_file(const Error& error, const DataSet& set, std::uint64_t index) {
    if (index >= set.listing().size()) {
        return fail(error, "file %llu of %s", static_cast<unsigned long long>(index),
                    set.path().c_str());
    }
    std::string name(set.listing().name(index).substr(0, 128));
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return fail(error, "file '%s' of %s", name.c_str(), set.path().c_str());
}

DataOptions options_of(const fabricshm_session* session, const char* socket) {
    SessionOptions attach;
    if (session != nullptr) {
        attach = session->options;
    } else {
        attach.sockets = socket_paths("");
        attach.label = program_name();
    }
    attach.device.clear();  // what it reads is not held for a device
    DataOptions options;
    options.sockets = data_socket_paths(socket != nullptr ? socket : "");
    options.timeout = attach.timeout;
    options.make_subscriber = [attach] { return subscriber_of(attach); };
    return options;
}

proto::DataPlanRequest request_of(const fabricshm_data_plan& plan) {
    proto::DataPlanRequest request{};
    request.seed = plan.seed + plan.epoch;
    request.samples = plan.samples;
    request.position = plan.position;
    request.rank = plan.rank;
    request.world = plan.world;
    request.kind = static_cast<std::uint32_t>(plan.sampler);
    if ((plan.flags & FABRICSHM_DATA_DROP_LAST) != 0) request.flags |= proto::kDataPlanDropLast;
    if ((plan.flags & FABRICSHM_DATA_IN_ORDER) != 0) request.flags |= proto::kDataPlanInOrder;
    return request;
}

int check_plan(const fabricshm_data_plan& plan) {
    constexpr std::uint32_t kFlags = FABRICSHM_DATA_IN_ORDER | FABRICSHM_DATA_DROP_LAST;
    if (plan.sampler < 0 || plan.sampler > FABRICSHM_DATA_DISTRIBUTED_SAMPLER) {
        return refuse("fabricshm_data_announce: plan->sampler is none");
    }
    if ((plan.flags & ~kFlags) != 0) return refuse("fabricshm_data_announce: plan->flags");
    if (plan.rank >= plan.world) {
        return refuse("fabricshm_data_announce: plan->rank is not below plan->world");
    }
    return FABRICSHM_OK;
}

// The one that finds no view left frees the set: one at a time. `end` comes before.
template <typename End>
void free_if_unused(fabricshm_data_set* set, End&& end) noexcept {
    // The lock lies in what goes with the last set.
    const std::shared_ptr<DataClient> client = set->set->shared_client();
    const std::lock_guard lock(client->process().closing());
    if (end() && set->set->held() == 0) delete set;
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_data_open(fabricshm_session* session, const char* socket, fabricshm_data** data) {
    return guarded("fabricshm_data_open", [&]() -> int {
        if (data == nullptr) return refuse("fabricshm_data_open: data is NULL");
        if (socket != nullptr && *socket == '\0') {
            return refuse("fabricshm_data_open: socket is empty");
        }
        if (session != nullptr && session->session->is_foreign()) {
            return fail({Errc::kClosed, 0, ""}, "fabricshm_data_open");
        }
        auto opened = DataClient::open(options_of(session, socket));
        if (!opened.ok()) return fail(opened.error(), "data");
        *data = new fabricshm_data{std::move(opened).value()};
        return FABRICSHM_OK;
    });
}

void fabricshm_data_close(fabricshm_data* data) {
    delete data;
}

int fabricshm_data_list(fabricshm_data* data, const char* path, uint32_t flags, int64_t timeout_ms,
                        fabricshm_data_set** set) {
    return guarded("fabricshm_data_list", [&]() -> int {
        if (data == nullptr) return refuse("fabricshm_data_list: data is NULL");
        if (set == nullptr) return refuse("fabricshm_data_list: set is NULL");
        if (const int code = check_path("fabricshm_data_list", path); code != 0) return code;
        if (const int code = check_timeout("fabricshm_data_list", timeout_ms); code != 0) {
            return code;
        }
        if ((flags & ~FABRICSHM_DATA_RECURSIVE) != 0 && flags != FABRICSHM_DATA_FILE) {
            return refuse("fabricshm_data_list: flags has a bit that is none");
        }
        auto listed =
            DataSet::list(data->client, path, flags, deadline_of(*data->client, timeout_ms));
        if (!listed.ok()) return fail(listed.error(), "path '%s'", path);
        *set = new fabricshm_data_set(std::move(listed).value());
        return FABRICSHM_OK;
    });
}

void fabricshm_data_set_close(fabricshm_data_set* set) {
    if (set == nullptr) return;
    free_if_unused(set, [set] {
        set->is_closed.store(true, std::memory_order_release);
        return true;
    });
}

uint64_t fabricshm_data_set_count(const fabricshm_data_set* set) {
    return set == nullptr ? 0 : set->set->listing().size();
}

int fabricshm_data_set_entry(const fabricshm_data_set* set, uint64_t index,
                             fabricshm_data_entry* entry) {
    if (set == nullptr) return refuse("fabricshm_data_set_entry: set is NULL");
    if (entry == nullptr) return refuse("fabricshm_data_set_entry: entry is NULL");
    if (entry->struct_size < sizeof *entry) {
        return refuse("entry->struct_size is %zu, less than %zu", entry->struct_size,
                      sizeof *entry);
    }
    const ListingView& listing = set->set->listing();
    if (index >= listing.size()) return fail_file({Errc::kNotFound, 0, "index"}, *set->set, index);
    const DataEntry& listed = listing.entry(index);
    const std::string_view name = listing.name(index);
    entry->name = name.data();
    entry->name_bytes = name.size();
    entry->bytes = listed.bytes;
    entry->flags = listed.flags & FABRICSHM_DATA_FOLDER;
    entry->reserved = 0;
    entry->file = listed.file;
    entry->mtime_ns = listed.mtime_ns;
    std::copy(std::begin(listed.version), std::end(listed.version), entry->version);
    return FABRICSHM_OK;
}

int fabricshm_data_set_find(const fabricshm_data_set* set, const char* name, uint64_t* index) {
    if (set == nullptr) return refuse("fabricshm_data_set_find: set is NULL");
    if (name == nullptr) return refuse("fabricshm_data_set_find: name is NULL");
    if (index == nullptr) return refuse("fabricshm_data_set_find: index is NULL");
    const auto found = set->set->listing().find(name);
    if (!found) {
        return fail({Errc::kNotFound, 0, ""}, "file '%s' of %s", name, set->set->path().c_str());
    }
    *index = *found;
    return FABRICSHM_OK;
}

int fabricshm_data_acquire(fabricshm_data_set* set, uint64_t index, uint64_t offset,
                           int64_t timeout_ms, fabricshm_data_view* view) {
    return guarded("fabricshm_data_acquire", [&]() -> int {
        if (set == nullptr) return refuse("fabricshm_data_acquire: set is NULL");
        if (view == nullptr) return refuse("fabricshm_data_acquire: view is NULL");
        if (const int code = check_timeout("fabricshm_data_acquire", timeout_ms); code != 0) {
            return code;
        }
        const auto held =
            set->set->acquire(index, offset, timeout_of(set->set->client(), timeout_ms));
        if (!held.ok()) return fail_file(held.error(), *set->set, index);
        *view = {held->bytes, held->length, held->handle};
        return FABRICSHM_OK;
    });
}

void fabricshm_data_release(fabricshm_data_set* set, const fabricshm_data_view* view) {
    if (set == nullptr || view == nullptr || view->handle == 0) return;
    // Acquire: of a set that was closed, the close came before.
    if (__builtin_expect(!set->is_closed.load(std::memory_order_acquire), true)) {
        set->set->release(view->handle);
        return;
    }
    free_if_unused(set, [&] { return set->set->release(view->handle); });
}

int fabricshm_data_read(fabricshm_data_set* set, uint64_t index, uint64_t offset, void* into,
                        uint64_t bytes, int64_t timeout_ms, uint64_t* got) {
    return guarded("fabricshm_data_read", [&]() -> int {
        if (set == nullptr) return refuse("fabricshm_data_read: set is NULL");
        if (into == nullptr && bytes != 0) return refuse("fabricshm_data_read: into is NULL");
        if (got == nullptr) return refuse("fabricshm_data_read: got is NULL");
        if (const int code = check_timeout("fabricshm_data_read", timeout_ms); code != 0) {
            return code;
        }
        const auto copied =
            set->set->read(index, offset, std::span(static_cast<std::byte*>(into), bytes),
                           timeout_of(set->set->client(), timeout_ms));
        if (!copied.ok()) return fail_file(copied.error(), *set->set, index);
        *got = copied.value();
        return FABRICSHM_OK;
    });
}

int fabricshm_data_announce(fabricshm_data_set* set, const fabricshm_data_plan* plan) {
    return guarded("fabricshm_data_announce", [&]() -> int {
        if (set == nullptr) return refuse("fabricshm_data_announce: set is NULL");
        if (plan == nullptr) return refuse("fabricshm_data_announce: plan is NULL");
        if (const int code = check_struct_size("plan", plan, plan->struct_size, sizeof *plan);
            code != 0) {
            return code;
        }
        if (const int code = check_plan(*plan); code != 0) return code;
        const auto announced = set->set->announce(
            request_of(*plan), deadline_of(set->set->client(), FABRICSHM_TIMEOUT_DEFAULT));
        if (!announced.ok()) return fail(announced.error(), "path '%s'", set->set->path().c_str());
        return FABRICSHM_OK;
    });
}

int fabricshm_data_get_stats(const fabricshm_data* data, fabricshm_data_stats* stats) {
    return guarded("fabricshm_data_get_stats", [&]() -> int {
        if (data == nullptr) return refuse("fabricshm_data_get_stats: data is NULL");
        if (stats == nullptr) return refuse("fabricshm_data_get_stats: stats is NULL");
        if (stats->struct_size < sizeof *stats) {
            return refuse("stats->struct_size is %zu, less than %zu", stats->struct_size,
                          sizeof *stats);
        }
        const DataCounts counts = data->client->process().counts();
        stats->hits = counts.hits;
        stats->misses = counts.misses;
        stats->stall_ns = counts.stall_ns;
        stats->bytes = counts.bytes;
        stats->copies = counts.copies;
        stats->pinned = data->client->process().held();
        stats->slots = DataPins::kViews;
        return FABRICSHM_OK;
    });
}

int fabricshm_data_create(fabricshm_data* data, const char* path, int64_t timeout_ms,
                          fabricshm_data_writer** writer) {
    return guarded("fabricshm_data_create", [&]() -> int {
        if (data == nullptr) return refuse("fabricshm_data_create: data is NULL");
        if (writer == nullptr) return refuse("fabricshm_data_create: writer is NULL");
        if (const int code = check_path("fabricshm_data_create", path); code != 0) return code;
        if (const int code = check_timeout("fabricshm_data_create", timeout_ms); code != 0) {
            return code;
        }
        auto made = DataWriter::create(data->client, path, deadline_of(*data->client, timeout_ms));
        if (!made.ok()) return fail(made.error(), "file '%s'", path);
        *writer = new fabricshm_data_writer{std::move(made).value()};
        return FABRICSHM_OK;
    });
}

int fabricshm_data_write(fabricshm_data_writer* writer, const void* bytes, uint64_t length,
                         int64_t timeout_ms) {
    return guarded("fabricshm_data_write", [&]() -> int {
        if (writer == nullptr) return refuse("fabricshm_data_write: writer is NULL");
        if (bytes == nullptr && length != 0) return refuse("fabricshm_data_write: bytes is NULL");
        if (const int code = check_timeout("fabricshm_data_write", timeout_ms); code != 0) {
            return code;
        }
        DataWriter& file = *writer->writer;
        const auto written = file.write(std::span(static_cast<const std::byte*>(bytes), length),
                                        deadline_of(file.client(), timeout_ms));
        return written.ok() ? FABRICSHM_OK
                            : fail(written.error(), "file '%s'", file.path().c_str());
    });
}

int fabricshm_data_commit(fabricshm_data_writer* writer, int64_t timeout_ms) {
    return guarded("fabricshm_data_commit", [&]() -> int {
        if (writer == nullptr) return refuse("fabricshm_data_commit: writer is NULL");
        const std::unique_ptr<fabricshm_data_writer> freed(writer);
        if (const int code = check_timeout("fabricshm_data_commit", timeout_ms); code != 0) {
            return code;
        }
        DataWriter& file = *writer->writer;
        const auto done = file.commit(deadline_of(file.client(), timeout_ms));
        return done.ok() ? FABRICSHM_OK : fail(done.error(), "file '%s'", file.path().c_str());
    });
}

void fabricshm_data_abort(fabricshm_data_writer* writer) {
    delete writer;
}

}  // extern "C"
