#include "fabricd/data/catalogue/sqlite.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr const char* kStep = "catalogue";

Errc meaning_of(int code) {
    switch (code & 0xff) {
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
            return Errc::kBusy;
        case SQLITE_NOTADB:
        case SQLITE_CORRUPT:
        case SQLITE_FORMAT:
        case SQLITE_SCHEMA:
        case SQLITE_MISMATCH:
        case SQLITE_TOOBIG:
        // A table or column that the schema has and the file has not, or the other way round.
        case SQLITE_ERROR:
        case SQLITE_CONSTRAINT:
            return Errc::kCorrupt;
        case SQLITE_PERM:
        case SQLITE_READONLY:
        case SQLITE_AUTH:
            return Errc::kDenied;
        case SQLITE_NOMEM:
            return Errc::kNoMemory;
        default:
            return Errc::kSystem;
    }
}

Error error_of(sqlite3* database, int code) {
    // SQLite keeps no errno of a full disk.
    const bool is_full = (code & 0xff) == SQLITE_FULL;
    const int saved_errno = is_full               ? ENOSPC
                            : database != nullptr ? ::sqlite3_system_errno(database)
                                                  : 0;
    const char* const text = database != nullptr ? ::sqlite3_errmsg(database) : "no memory";
    return explain({meaning_of(code), saved_errno, kStep}, "%s", text);
}

}  // namespace

void SqlStatement::Finalize::operator()(sqlite3_stmt* statement) const noexcept {
    ::sqlite3_finalize(statement);
}

void SqlStatement::bind(int place, std::int64_t value) noexcept {
    FABRIC_CHECK(::sqlite3_bind_int64(statement_.get(), place, value) == SQLITE_OK);
}

void SqlStatement::bind(int place, std::string_view bytes) noexcept {
    bind(place, std::as_bytes(std::span(bytes)));
}

void SqlStatement::bind(int place, std::span<const std::byte> bytes) noexcept {
    // A null pointer would bind NULL, not no bytes.
    const void* const data = bytes.empty() ? static_cast<const void*>("") : bytes.data();
    FABRIC_CHECK(::sqlite3_bind_blob64(statement_.get(), place, data, bytes.size(),
                                       SQLITE_STATIC) == SQLITE_OK);
}

Result<bool> SqlStatement::step() noexcept {
    const int code = ::sqlite3_step(statement_.get());
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    const Error error = error_of(::sqlite3_db_handle(statement_.get()), code);
    reset();
    return error;
}

Result<void> SqlStatement::run() noexcept {
    const auto stepped = step();
    reset();
    if (!stepped.ok()) return stepped.error();
    return {};
}

void SqlStatement::reset() noexcept {
    // Its code is that of the last step() once more.
    static_cast<void>(::sqlite3_reset(statement_.get()));
}

std::int64_t SqlStatement::number(int column) const noexcept {
    return ::sqlite3_column_int64(statement_.get(), column);
}

std::string_view SqlStatement::bytes(int column) const noexcept {
    // In this order: the conversion of a column that is no blob changes its size.
    const void* const data = ::sqlite3_column_blob(statement_.get(), column);
    const auto size = static_cast<std::size_t>(::sqlite3_column_bytes(statement_.get(), column));
    return data != nullptr ? std::string_view(static_cast<const char*>(data), size)
                           : std::string_view();
}

void SqlDatabase::Close::operator()(sqlite3* database) const noexcept {
    ::sqlite3_close_v2(database);
}

Result<SqlDatabase> SqlDatabase::open(const std::string& path) {
    // SQLite would make it with the mode that the umask leaves; its log gets the file's mode.
    const fabricshm::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fabricshm::error_of_disk(errno, kStep);
    sqlite3* opened = nullptr;
    constexpr int kFlags =
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW;
    const int code = ::sqlite3_open_v2(path.c_str(), &opened, kFlags, nullptr);
    SqlDatabase database;
    database.database_.reset(opened);  // also of a failure
    if (code != SQLITE_OK) return error_of(opened, code);
    // The file may be anything: it makes no functions run and no limits go.
    ::sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    ::sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    ::sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
    ::sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    return database;
}

Result<void> SqlDatabase::run(const char* text) noexcept {
    const int code = ::sqlite3_exec(database_.get(), text, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return error_of(database_.get(), code);
    return {};
}

Result<SqlStatement> SqlDatabase::prepare(const char* text) noexcept {
    sqlite3_stmt* statement = nullptr;
    const int code = ::sqlite3_prepare_v3(database_.get(), text, -1, SQLITE_PREPARE_PERSISTENT,
                                          &statement, nullptr);
    if (code != SQLITE_OK) return error_of(database_.get(), code);
    return SqlStatement(statement);
}

}  // namespace fabricd
