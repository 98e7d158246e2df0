// What the catalogue asks of SQLite: a file, statements that were prepared once, errors as Result.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "libfabricshm/base/result.hpp"

struct sqlite3;
struct sqlite3_stmt;

namespace fabricd {

using fabricshm::Error;
using fabricshm::Result;

/// One thread at a time. Goes before its database does.
class SqlStatement {
  public:
    SqlStatement() = default;
    explicit SqlStatement(sqlite3_stmt* statement) : statement_(statement) {}

    /// Parameters count from 1. What is bound has to live until the next reset().
    void bind(int place, std::int64_t value) noexcept;
    void bind(int place, std::string_view bytes) noexcept;
    void bind(int place, std::span<const std::byte> bytes) noexcept;

    /// True: there is a row, whose columns count from 0. False: there are no more.
    Result<bool> step() noexcept;
    /// A statement without rows, once, and ready for the next time.
    Result<void> run() noexcept;
    void reset() noexcept;

    std::int64_t number(int column) const noexcept;
    /// Until the next step().
    std::string_view bytes(int column) const noexcept;

  private:
    struct Finalize {
        void operator()(sqlite3_stmt* statement) const noexcept;
    };
    std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// One thread at a time.
class SqlDatabase {
  public:
    /// Makes or opens the file, mode 0600. kBusy: another process has it. kCorrupt: it is no
    /// database, or a broken one. kSystem: the disk fails or is full.
    static Result<SqlDatabase> open(const std::string& path);

    /// One or more statements without results.
    Result<void> run(const char* text) noexcept;
    Result<SqlStatement> prepare(const char* text) noexcept;

  private:
    struct Close {
        void operator()(sqlite3* database) const noexcept;
    };
    std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace fabricd
