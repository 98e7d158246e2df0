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
    FABRIC_TRY(DataChannel::Apart begun, client->process().channel().call_apart(
                                             proto::DataType::kCreate, path, "create", deadline));
    const auto reply = proto::data_fixed<proto::DataCreateReply>(begun.answer.payload);
    if (!reply) return Error{Errc::kCorrupt, 0, "create"};
    return std::unique_ptr<DataWriter>(
        new DataWriter(std::move(client), path, reply->write, std::move(begun.connection)));
}

DataWriter::~DataWriter() {
    if (connection_ == nullptr || generation_ != fork_guard::generation()) return;
    const auto aborted = client_->process().channel().call_on(
        connection_, proto::DataType::kAbort, proto::data_payload(proto::DataWriteEnd{write_}),
        "abort", deadline_from_now(kAbortTimeout));
    if (!aborted.ok()) {
        log(LogLevel::kWarning, "abort of the file '%s': %s", path_.c_str(),
            describe(aborted.error()).c_str());
    }
}

Result<void> DataWriter::may_go_on() const {
    if (is_over_ || generation_ != fork_guard::generation()) {
        return Error{Errc::kClosed, 0, "write"};
    }
    if (connection_ == nullptr) {
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
            connection_.reset();
            return written;
        }
        bytes = bytes.subspan(piece.size());
    }
    return {};
}

Result<void> DataWriter::append(std::span<const std::byte> bytes, TimePoint deadline) {
    FABRIC_TRY(const Fd file, make_sealed_file("fabric data", bytes));
    const auto answer = client_->process().channel().call_on(
        connection_, proto::DataType::kWrite,
        proto::data_payload(proto::DataWriteRequest{write_, bytes.size()}), "write", deadline,
        file.get());
    if (!answer.ok()) return answer.error();
    return {};
}

Result<void> DataWriter::commit(TimePoint deadline) {
    FABRIC_TRY_VOID(may_go_on());
    is_over_ = true;
    const auto answer = client_->process().channel().call_on(
        connection_, proto::DataType::kCommit, proto::data_payload(proto::DataWriteEnd{write_}),
        "commit", deadline);
    // Committed or refused; or it ends with the connection, if the service has not been asked.
    connection_.reset();
    if (!answer.ok()) return answer.error();
    return {};
}

}  // namespace fabricshm
