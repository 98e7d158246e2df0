// The admin API: shards, their moves, and quotas.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "fabricd/server/admin_service.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using namespace admin::v1;

namespace {

// A progress bar for people; each look is a turn of the control thread, and of one shard only: of
// thousands, sixteen such calls would keep it busy with nothing else.
constexpr std::chrono::milliseconds kProgressEvery(200);

// The words of the error go along: the client's own table has no "not while a copy is under way".
grpc::Status refusal(const Error& error) {
    switch (error.code) {
        case Errc::kNotFound:
            return {grpc::StatusCode::NOT_FOUND, explanation_of(error)};
        case Errc::kInvalid:
            return {grpc::StatusCode::INVALID_ARGUMENT, explanation_of(error)};
        case Errc::kNoMemory:
            return {grpc::StatusCode::RESOURCE_EXHAUSTED, explanation_of(error)};
        default:
            return {grpc::StatusCode::FAILED_PRECONDITION, explanation_of(error)};
    }
}

// Outlives the call that waits for it: the move goes on when its client is gone.
struct MoveOutcome {
    std::mutex mutex;
    std::condition_variable known;
    std::optional<Result<void>> result;
    std::string text;  // of its error, with the reason that the control thread keeps

    void tell(const Result<void>& outcome) {
        const std::lock_guard lock(mutex);
        if (!outcome.ok()) text = explanation_of(outcome.error());
        result = outcome;
        known.notify_all();
    }
    /// Waits for one interval of progress at most.
    std::optional<Result<void>> wait() {
        std::unique_lock lock(mutex);
        known.wait_for(lock, kProgressEvery, [this] { return result.has_value(); });
        return result;
    }
};

}  // namespace

grpc::Status AdminService::Shards(grpc::ServerContext*, const ShardsRequest*, ShardsReply* reply) {
    for (const auto& shard : hooks_.snapshot({.shards = true}).shards)
        pack(shard, *reply->add_shards());
    return grpc::Status::OK;
}

grpc::Status AdminService::Migrate(grpc::ServerContext* context, const MigrateRequest* request,
                                   grpc::ServerWriter<MigrateReply>* writer) {
    // Before the move is ordered: a refusal that left it running would be a lie.
    const LongCall mine(long_calls_);
    if (!mine.has_place()) {
        return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches and moves"};
    }
    // Shared with the callback, which the registry may call long after this handler has returned.
    const auto outcome = std::make_shared<MoveOutcome>();
    const MoveOrder order{request->shard(), request->target(), request->bytes_per_second()};
    const auto begun =
        hooks_.move(order, [outcome](const Result<void>& result) { outcome->tell(result); });
    if (!begun.ok()) return refusal(begun.error());
    ShardView shard;  // as it was seen last: its owner may end it meanwhile
    for (;;) {
        const auto ended = outcome->wait();
        shard = hooks_.shard(order.shard).value_or(shard);
        // The last reply is filled like the others: it says how much there was.
        MigrateReply reply;
        reply.set_bytes(shard.bytes);
        // A shard that has ended its move shows 0 there.
        reply.set_moved_bytes(ended ? shard.bytes : shard.moved_bytes);
        reply.set_done(ended.has_value());
        if (ended && !ended->ok()) reply.set_error(outcome->text);
        const bool is_there = writer->Write(reply) && !context->IsCancelled();
        // At the daemon's end, too: the move is not reported any more, and a restart undoes it.
        if (ended || !is_there || stopping()) return grpc::Status::OK;
    }
}

grpc::Status AdminService::SetQuota(grpc::ServerContext*, const SetQuotaRequest* request,
                                    SetQuotaReply* reply) {
    fabricshm::log(fabricshm::LogLevel::kInfo, "admin: quota of %s to %llu bytes",
                   request->subject().c_str(), static_cast<unsigned long long>(request->bytes()));
    const auto state = hooks_.quota({request->subject(), request->bytes(), request->grace_ms()});
    if (!state.ok()) return refusal(state.error());
    reply->set_quota_bytes(state->quota_bytes);
    reply->set_target_bytes(state->target_bytes);
    reply->set_used_bytes(state->used_bytes);
    return grpc::Status::OK;
}

}  // namespace fabricd
