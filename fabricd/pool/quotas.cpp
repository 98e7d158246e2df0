#include "fabricd/pool/quotas.hpp"

#include <algorithm>
#include <charconv>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::kNoLimit;

namespace {

constexpr Duration kMaxGrace = std::chrono::hours(24);

// The number in "user:1000"; nothing for another subject.
std::optional<std::uint32_t> user_of(const std::string& subject) {
    constexpr std::string_view kKind = "user:";
    if (subject.compare(0, kKind.size(), kKind) != 0) return std::nullopt;
    std::uint32_t uid = 0;
    const char* end = subject.data() + subject.size();
    const auto [stop, bad] = std::from_chars(subject.data() + kKind.size(), end, uid);
    if (bad != std::errc{} || stop != end) return std::nullopt;
    return uid;
}

// One name for each user, however it was written: after a restart the last record counts.
std::string subject_of(std::uint32_t uid) {
    return "user:" + std::to_string(uid);
}

QuotaRecord quota_record(const std::string& subject, Bytes bytes, Bytes file_bytes = 0) {
    QuotaRecord record{};
    copy_name(record.subject, subject);
    record.bytes = bytes;
    record.file_bytes = file_bytes;
    return record;
}

// All of them, or else the journal says again what holds on.
Result<void> write_shifts(JournalGuard& journal, const std::vector<QuotaShift>& shifts,
                          const DeviceTable& devices) {
    for (std::size_t i = 0; i < shifts.size(); ++i) {
        const std::string& device = shifts[i].device;
        const auto written =
            journal.add(quota_record(device, shifts[i].after_bytes, devices.file_quota(device)));
        if (written.ok()) continue;
        while (i-- > 0) {
            const std::string& other = shifts[i].device;
            journal.note(quota_record(other, shifts[i].before_bytes, devices.file_quota(other)));
        }
        return written;
    }
    return {};
}

fabricshm::LimitImage image_of(const QuotaState& state, TimePoint now) {
    fabricshm::LimitImage image{state.quota_bytes, state.target_bytes, state.used_bytes, 0};
    const TimePoint deadline = now + std::chrono::milliseconds(state.left_ms);
    if (state.left_ms != 0) image.deadline_ns = deadline.time_since_epoch().count();
    return image;
}

}  // namespace

Result<QuotaState> Quotas::set(const QuotaOrder& order, TimePoint now) {
    const Duration asked = std::chrono::milliseconds(
        std::clamp<std::int64_t>(order.grace_ms, 0, kMaxGrace / std::chrono::milliseconds(1)));
    if (journal_.behind()) return Error{Errc::kSystem, 0, "journal is behind"};
    QuotaRecord record{};
    copy_name(record.subject, order.subject);
    record.bytes = order.bytes;
    record.grace_ms = order.grace_ms;
    if (const auto uid = user_of(order.subject)) {
        copy_name(record.subject, subject_of(*uid));
        FABRIC_TRY_VOID(journal_.add(record));
        books_.users.set_quota(*uid, order.bytes, now, asked);
        ++changes_;
        return books_.users.quota_of(*uid, now);
    }
    FABRIC_TRY(record.file_bytes, books_.devices.check_quota(order.subject, order.bytes));
    FABRIC_TRY_VOID(journal_.add(record));
    books_.devices.set_quota(order.subject, order.bytes, now, asked);
    ++changes_;
    return books_.devices.quota_of(order.subject, now);
}

// In one call: between two of them a third could get what one gives before another one has it.
Result<void> Quotas::shift(std::vector<QuotaShift> shifts, TimePoint now) {
    FABRIC_TRY_VOID(books_.devices.check_shifts(shifts));
    // A quota that gives goes first: a daemon that is killed between two records of it has promised
    // nothing twice.
    std::stable_partition(shifts.begin(), shifts.end(), [](const QuotaShift& shift) {
        return shift.after_bytes < shift.before_bytes;
    });
    FABRIC_TRY_VOID(write_shifts(journal_, shifts, books_.devices));
    for (const QuotaShift& shift : shifts) {
        books_.devices.set_quota(shift.device, shift.after_bytes, now, Duration::zero());
    }
    ++changes_;
    return {};
}

fabricshm::QuotaImage Quotas::of(const std::string& device, std::uint32_t uid,
                                 TimePoint now) const {
    fabricshm::QuotaImage image{};
    // A device that is no longer in the file gets nothing more: 0 means just that.
    if (books_.devices.knows(device))
        image.device = image_of(books_.devices.quota_of(device, now), now);
    image.user = image_of(books_.users.quota_of(uid, now), now);
    if (device.empty()) image.device.limit_bytes = image.device.target_bytes = kNoLimit;
    // Of a user 0 is no limit. From there it may be shrinking.
    if (image.user.limit_bytes == 0) image.user.limit_bytes = kNoLimit;
    if (image.user.target_bytes == 0) image.user.target_bytes = kNoLimit;
    return image;
}

TimePoint Quotas::next_deadline() const noexcept {
    return std::min(books_.users.next_deadline(), books_.devices.next_deadline());
}

// Shrinking that has come to its end. What it came to is written: after a restart it would be
// shrunk again to a target that was given up.
void Quotas::settle(TimePoint now) {
    for (const auto& [subject, bytes] : books_.devices.settle(now)) {
        ++changes_;
        fabricshm::log(fabricshm::LogLevel::kInfo, "quota of device %s is %llu bytes",
                       subject.c_str(), static_cast<unsigned long long>(bytes));
        journal_.note(quota_record(subject, bytes, books_.devices.file_quota(subject)));
    }
    for (const auto& [uid, bytes] : books_.users.settle(now)) {
        ++changes_;
        fabricshm::log(fabricshm::LogLevel::kInfo, "quota of user %u is %llu bytes", uid,
                       static_cast<unsigned long long>(bytes));
        journal_.note(quota_record(subject_of(uid), bytes));
    }
}

Result<void> Quotas::write(JournalSink& sink) const {
    for (QuotaRecord record : books_.devices.changes()) FABRIC_TRY_VOID(sink.add(record));
    for (QuotaRecord record : books_.users.changes()) FABRIC_TRY_VOID(sink.add(record));
    return {};
}

// After the regions are counted: whether something fits is known only then. A device whose quota
// was changed in the file since is the file's again, since that is what people wrote last.
void Quotas::restore(const PoolImage& image, TimePoint now) {
    for (const auto& [subject, record] : image.quotas) {
        const Duration grace = std::chrono::milliseconds(
            std::clamp<std::int64_t>(record.grace_ms, 0, 24 * 3600 * 1000));
        if (const auto uid = user_of(subject)) {
            books_.users.set_quota(*uid, record.bytes, now, grace);
        } else if (books_.devices.file_quota(subject) == record.file_bytes) {
            const auto fits = books_.devices.check_quota(subject, record.bytes);
            if (fits.ok()) books_.devices.set_quota(subject, record.bytes, now, grace);
        }
    }
}

}  // namespace fabricd
