#include "libfabricshm/client/data_writer.hpp"

#include <algorithm>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/sealed_file.hpp"

namespace fabricshm {

namespace {

// One message has so many bytes at most: what is on its way takes memory twice.
constexpr Bytes kMaxPiece = 16 * kMiB;

// Aborting is a courtesy: a service that does not hear of it ends the write with the connection or
// by its own timeout.
constexpr Duration kAbortTimeout = std::chrono::seconds(2);

}  // namespace

Result<std::unique_ptr<DataWriter>> DataWriter::create(std::shared_ptr<DataClient> client,
                                                       const std::string& path,
                                                       TimePoint deadline) {
    // Not asked twice: a service that died after it had begun would find the name taken.
    FABRIC_TRY(const DataChannel::Answer answer,
               client->process().channel().call(proto::DataType::kCreate, path, "create", deadline,
                                                -1, true));
    const auto reply = proto::data_fixed<proto::DataCreateReply>(answer.payload);
    if (!reply) return Error{Errc::kCorrupt, 0, "create"};
    std::unique_ptr<DataWriter> writer(new DataWriter(std::move(client), path));
    writer->write_ = reply->write;
    return writer;
}

DataWriter::~DataWriter() {
    if (is_over_ || generation_ != fork_guard::generation()) return;
    const auto aborted = client_->process().channel().call(
        proto::DataType::kAbort, proto::data_payload(proto::DataWriteEnd{write_}), "abort",
        deadline_from_now(kAbortTimeout), -1, true);
    if (!aborted.ok()) {
        log(LogLevel::kWarning, "abort of the file '%s': %s", path_.c_str(),
            describe(aborted.error()).c_str());
    }
}

Result<void> DataWriter::may_go_on() const {
    if (generation_ != fork_guard::generation()) return Error{Errc::kClosed, 0, "write"};
    if (is_over_) return Error{Errc::kClosed, 0, "write"};
    if (has_failed_) {
        return explain({Errc::kBroken, 0, "write"}, "a part of the file was not written: abort it");
    }
    return {};
}

Result<void> DataWriter::write(std::span<const std::byte> bytes, TimePoint deadline) {
    FABRIC_TRY_VOID(may_go_on());
    while (!bytes.empty()) {
        const auto piece = bytes.first(std::min<Bytes>(bytes.size(), kMaxPiece));
        const auto written = append(piece, deadline);
        if (!written.ok()) {
            has_failed_ = true;
            return written;
        }
        bytes = bytes.subspan(piece.size());
    }
    return {};
}

Result<void> DataWriter::append(std::span<const std::byte> bytes, TimePoint deadline) {
    FABRIC_TRY(const Fd file, make_sealed_file("fabric data", bytes));
    const auto answer = client_->process().channel().call(
        proto::DataType::kWrite, proto::data_payload(proto::DataWriteRequest{write_, bytes.size()}),
        "write", deadline, file.get(), true);
    if (!answer.ok()) return answer.error();
    return {};
}

Result<void> DataWriter::commit(TimePoint deadline) {
    FABRIC_TRY_VOID(may_go_on());
    const auto answer = client_->process().channel().call(
        proto::DataType::kCommit, proto::data_payload(proto::DataWriteEnd{write_}), "commit",
        deadline, -1, true);
    is_over_ = answer.ok();
    if (!answer.ok()) return answer.error();
    return {};
}

}  // namespace fabricshm
