#include "fabricd/data/catalogue/catalogue.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "fabricd/data/catalogue/sqlite.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/random.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

// Of the file's header: no other program's database is taken for a catalogue.
constexpr std::int64_t kApplication = 0x46414243;  // "FABC"
constexpr std::int64_t kVersion = 1;
constexpr Bytes kMaxFileBytes = Bytes{1} << 62;

// In this order: the page size before there is a page; the lock before there is a log, so that no
// shared memory is made for it and a second process is refused.
constexpr const char* kSettings =
    "PRAGMA page_size=4096; PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;"
    // A commit does not wait for the disk: what is lost with the power is fetched again.
    "PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-16384;"
    "PRAGMA wal_autocheckpoint=4000; PRAGMA journal_size_limit=67108864;";

constexpr const char* kSchema =
    "BEGIN;"
    "CREATE TABLE catalogue(identity BLOB NOT NULL, opens INTEGER NOT NULL);"
    "CREATE TABLE files(id INTEGER PRIMARY KEY, path BLOB NOT NULL, bytes INTEGER NOT NULL,"
    " version BLOB NOT NULL);"
    "CREATE TABLE slots(slot INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, file INTEGER NOT NULL,"
    " number INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,"
    " index_at INTEGER NOT NULL);"
    "CREATE TABLE folders(id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE,"
    " whole INTEGER NOT NULL);"
    "CREATE TABLE names(folder INTEGER NOT NULL, name BLOB NOT NULL, is_folder INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, version BLOB NOT NULL, PRIMARY KEY(folder, name)) WITHOUT ROWID;"
    "CREATE TABLE plans(name BLOB PRIMARY KEY, plan BLOB NOT NULL) WITHOUT ROWID;"
    "PRAGMA application_id=1178681923; PRAGMA user_version=1;"
    "COMMIT;";
static_assert(kApplication == 1178681923 && kVersion == 1);

Error corrupt(const char* what) {
    return explain({Errc::kCorrupt, 0, "catalogue"}, "%s", what);
}

// Most versions end with zeros, an ETag's size and kind aside: these are not stored.
std::span<const std::byte> bytes_of(const FileVersion& version) {
    std::size_t words = version.words.size();
    while (words > 0 && version.words[words - 1] == 0) --words;
    return std::as_bytes(std::span(version.words)).first(words * sizeof version.words[0]);
}

bool read_version(std::string_view bytes, FileVersion& version) {
    if (bytes.size() > sizeof version.words || bytes.size() % sizeof version.words[0] != 0) {
        return false;
    }
    if (!bytes.empty()) std::memcpy(version.words.data(), bytes.data(), bytes.size());
    return true;
}

bool read_facts(const SqlStatement& row, int column, FileFacts& facts) {
    const std::int64_t bytes = row.number(column);
    if (bytes < 0 || static_cast<Bytes>(bytes) > kMaxFileBytes) return false;
    facts.bytes = static_cast<Bytes>(bytes);
    return read_version(row.bytes(column + 1), facts.version);
}

template <typename T>
bool read_number(const SqlStatement& row, int column, T& number) {
    const std::int64_t value = row.number(column);
    number = static_cast<T>(value);
    return value >= 0 && static_cast<std::uint64_t>(value) == number;
}

bool is_namespace_path(std::string_view path) {
    return path.size() >= 2 && path.front() == '/' && path.size() <= 2 * kSiloPathBytes &&
           path.find('\0') == path.npos;
}

bool is_entry_name(std::string_view name) {
    return is_silo_path(name) && name.find('/') == name.npos && name.size() <= kSiloNameBytes;
}

std::int64_t signed_of(std::uint64_t value) {
    return static_cast<std::int64_t>(value);
}

}  // namespace

struct Catalogue::Open {
    SqlDatabase database;
    CatalogueIdentity identity{};
    std::uint32_t opens = 0;
    // All are prepared once.
    SqlStatement begin, commit, rollback;
    SqlStatement put_file, drop_file, put_slot, drop_slot, put_plan, drop_plan;
    SqlStatement add_folder, find_folder, folder_is_whole, drop_folder, drop_names, put_name;
    SqlStatement files, slots, plans, page, facts;

    Result<void> begin_new();
    Result<void> read_identity();
    Result<void> prepare_all();
    Result<std::int64_t> folder_id(const std::string& path, bool only_whole);

    Result<void> put(const CataloguedFile& file);
    Result<void> put(const CataloguedSlot& slot);
    Result<void> put(const CataloguedPage& page);
    Result<void> put(const DropFile& file);
    Result<void> put(const DropSlot& slot);
    Result<void> put(const DropFolder& folder);
    Result<void> put(const PutPlan& plan);
    Result<void> put_names(std::int64_t folder, const CataloguedPage& listed);
};

Result<void> Catalogue::Open::begin_new() {
    FABRIC_TRY_VOID(database.run(kSchema));
    CatalogueIdentity made{};
    FABRIC_TRY_VOID(fabricshm::fill_random(made));
    FABRIC_TRY(auto insert, database.prepare("INSERT INTO catalogue VALUES(?, 0)"));
    insert.bind(1, std::span<const std::byte>(made));
    return insert.run();
}

Result<void> Catalogue::Open::read_identity() {
    FABRIC_TRY_VOID(database.run("UPDATE catalogue SET opens=opens+1"));
    FABRIC_TRY(auto row, database.prepare("SELECT identity, opens FROM catalogue"));
    FABRIC_TRY(const bool found, row.step());
    if (!found || row.bytes(0).size() != identity.size()) return corrupt("it has no identity");
    std::memcpy(identity.data(), row.bytes(0).data(), identity.size());
    if (!read_number(row, 1, opens) || opens == 0) return corrupt("it was opened too often");
    FABRIC_TRY(const bool second, row.step());
    if (second) return corrupt("it has two identities");
    return {};
}

Result<void> Catalogue::Open::prepare_all() {
    const struct {
        SqlStatement& statement;
        const char* text;
    } all[] = {
        {begin, "BEGIN IMMEDIATE"},
        {commit, "COMMIT"},
        {rollback, "ROLLBACK"},
        {put_file, "INSERT OR REPLACE INTO files VALUES(?, ?, ?, ?)"},
        {drop_file, "DELETE FROM files WHERE id=?"},
        {put_slot, "INSERT OR REPLACE INTO slots VALUES(?, ?, ?, ?, ?, ?, ?)"},
        {drop_slot, "DELETE FROM slots WHERE slot=?"},
        {put_plan, "INSERT OR REPLACE INTO plans VALUES(?, ?)"},
        {drop_plan, "DELETE FROM plans WHERE name=?"},
        {add_folder, "INSERT OR IGNORE INTO folders(path, whole) VALUES(?, 0)"},
        {find_folder, "SELECT id, whole FROM folders WHERE path=?"},
        {folder_is_whole, "UPDATE folders SET whole=1 WHERE id=?"},
        {drop_folder, "DELETE FROM folders WHERE id=?"},
        {drop_names, "DELETE FROM names WHERE folder=? AND name>? AND (? OR name<=?)"},
        {put_name, "INSERT OR REPLACE INTO names VALUES(?, ?, ?, ?, ?)"},
        {files, "SELECT id, path, bytes, version FROM files"},
        {slots, "SELECT slot, sequence, file, number, bytes, checksum, index_at FROM slots"},
        {plans, "SELECT name, plan FROM plans"},
        {page,
         "SELECT name, is_folder, bytes, version FROM names WHERE folder=? AND name>?"
         " ORDER BY name LIMIT ?"},
        {facts, "SELECT bytes, version FROM names WHERE folder=? AND name=? AND is_folder=0"}};
    for (const auto& one : all) {
        FABRIC_TRY(one.statement, database.prepare(one.text));
    }
    return {};
}

namespace {

Result<std::int64_t> number_of(SqlDatabase& database, const char* text) {
    FABRIC_TRY(auto statement, database.prepare(text));
    FABRIC_TRY(const bool found, statement.step());
    return found ? statement.number(0) : -1;
}

// The whole file is not read: a broken page is noticed when it is asked for.
Result<void> begin_or_check(SqlDatabase& database, bool& is_new) {
    FABRIC_TRY_VOID(database.run(kSettings));
    // Takes the lock: kBusy where another process has it.
    FABRIC_TRY(const auto tables, number_of(database, "SELECT count(*) FROM sqlite_master"));
    is_new = tables == 0;
    if (is_new) return {};
    FABRIC_TRY(const auto application, number_of(database, "PRAGMA application_id"));
    FABRIC_TRY(const auto version, number_of(database, "PRAGMA user_version"));
    if (application != kApplication) return corrupt("it is another program's");
    if (version != kVersion) return corrupt("it is of another version");
    return {};
}

}  // namespace

Catalogue::Catalogue(std::unique_ptr<Open> open) : open_(std::move(open)) {}
Catalogue::~Catalogue() = default;

const CatalogueIdentity& Catalogue::identity() const noexcept {
    return open_->identity;
}

std::uint32_t Catalogue::opens() const noexcept {
    return open_->opens;
}

Result<void> Catalogue::rename_bad(const std::string& path, const Error& why) {
    const std::string bad = path + ".bad";
    fabricshm::log(fabricshm::LogLevel::kWarning, "%s: %s; renamed to %s", path.c_str(),
                   fabricshm::explanation_of(why).c_str(), bad.c_str());
    // The log first: it must not be taken for the new file's. It holds nothing that can't be
    // missed.
    for (const char* end : {"-wal", "-shm", "-journal"}) {
        if (::unlink((path + end).c_str()) != 0 && errno != ENOENT) {
            return fabricshm::error_of_disk(errno, "remove a catalogue's log");
        }
    }
    FAULT_POINT("catalogue.log_removed");
    if (::rename(path.c_str(), bad.c_str()) != 0) {
        return fabricshm::error_of_disk(errno, "rename a catalogue");
    }
    FAULT_POINT("catalogue.renamed");
    return {};
}

Result<std::unique_ptr<Catalogue>> Catalogue::open(const std::string& path) {
    const auto attempt = [&]() -> Result<std::unique_ptr<Catalogue>> {
        auto open = std::make_unique<Open>();
        FABRIC_TRY(open->database, SqlDatabase::open(path));
        bool is_new = false;
        FABRIC_TRY_VOID(begin_or_check(open->database, is_new));
        if (is_new) FABRIC_TRY_VOID(open->begin_new());
        FABRIC_TRY_VOID(open->read_identity());
        FABRIC_TRY_VOID(open->prepare_all());
        return std::unique_ptr<Catalogue>(new Catalogue(std::move(open)));
    };
    auto opened = attempt();
    if (opened.ok() || opened.error().code != Errc::kCorrupt) return opened;
    FABRIC_TRY_VOID(rename_bad(path, opened.error()));
    return attempt();
}

Result<void> Catalogue::Open::put(const CataloguedFile& file) {
    put_file.bind(1, signed_of(file.id));
    put_file.bind(2, file.path);
    put_file.bind(3, signed_of(file.facts.bytes));
    put_file.bind(4, bytes_of(file.facts.version));
    return put_file.run();
}

Result<void> Catalogue::Open::put(const CataloguedSlot& slot) {
    put_slot.bind(1, std::int64_t{slot.slot});
    put_slot.bind(2, signed_of(slot.sequence));
    put_slot.bind(3, signed_of(slot.file));
    put_slot.bind(4, std::int64_t{slot.number});
    put_slot.bind(5, std::int64_t{slot.bytes});
    put_slot.bind(6, std::int64_t{slot.checksum});
    put_slot.bind(7, std::int64_t{slot.index_at});
    return put_slot.run();
}

Result<void> Catalogue::Open::put(const DropFile& file) {
    drop_file.bind(1, signed_of(file.id));
    return drop_file.run();
}

Result<void> Catalogue::Open::put(const DropSlot& slot) {
    drop_slot.bind(1, std::int64_t{slot.slot});
    return drop_slot.run();
}

Result<void> Catalogue::Open::put(const PutPlan& plan) {
    SqlStatement& statement = plan.plan.empty() ? drop_plan : put_plan;
    statement.bind(1, plan.name);
    if (!plan.plan.empty()) statement.bind(2, plan.plan);
    return statement.run();
}

// kNotFound: it is not there.
Result<std::int64_t> Catalogue::Open::folder_id(const std::string& path, bool only_whole) {
    find_folder.bind(1, path);
    const auto found = find_folder.step();
    const bool usable = found.ok() && *found && (find_folder.number(1) != 0 || !only_whole);
    const std::int64_t id = usable ? find_folder.number(0) : 0;
    find_folder.reset();
    if (!found.ok()) return found.error();
    if (!usable) return Error{Errc::kNotFound, 0, "catalogue"};
    return id;
}

Result<void> Catalogue::Open::put(const DropFolder& folder) {
    const auto id = folder_id(folder.folder, false);
    if (!id.ok() && id.error().code == Errc::kNotFound) return {};
    if (!id.ok()) return id.error();
    drop_names.bind(1, *id);
    drop_names.bind(2, std::string_view());
    drop_names.bind(3, 1);
    drop_names.bind(4, std::string_view());
    FABRIC_TRY_VOID(drop_names.run());
    drop_folder.bind(1, *id);
    return drop_folder.run();
}

Result<void> Catalogue::Open::put_names(std::int64_t folder, const CataloguedPage& listed) {
    for (const SiloEntry& entry : listed.page.entries) {
        put_name.bind(1, folder);
        put_name.bind(2, entry.name);
        put_name.bind(3, std::int64_t{entry.is_folder});
        put_name.bind(4, signed_of(entry.facts.bytes));
        put_name.bind(5, bytes_of(entry.facts.version));
        FABRIC_TRY_VOID(put_name.run());
    }
    return {};
}

Result<void> Catalogue::Open::put(const CataloguedPage& listed) {
    const auto& entries = listed.page.entries;
    if (entries.empty() && !listed.page.is_last) return {};
    add_folder.bind(1, listed.folder);
    FABRIC_TRY_VOID(add_folder.run());
    FABRIC_TRY(const std::int64_t folder, folder_id(listed.folder, false));
    drop_names.bind(1, folder);
    drop_names.bind(2, listed.after);
    drop_names.bind(3, std::int64_t{listed.page.is_last});
    drop_names.bind(4, entries.empty() ? std::string_view() : entries.back().name);
    FABRIC_TRY_VOID(drop_names.run());
    FABRIC_TRY_VOID(put_names(folder, listed));
    if (!listed.page.is_last) return {};
    folder_is_whole.bind(1, folder);
    return folder_is_whole.run();
}

Result<void> Catalogue::write(const std::vector<CatalogueChange>& changes) {
    FABRIC_TRY_VOID(open_->begin.run());
    FAULT_POINT("catalogue.begun");
    for (const CatalogueChange& change : changes) {
        const auto put = std::visit([&](const auto& one) { return open_->put(one); }, change);
        if (put.ok()) continue;
        static_cast<void>(open_->rollback.run());
        return put;
    }
    FAULT_POINT("catalogue.written");
    const auto committed = open_->commit.run();
    if (!committed.ok()) static_cast<void>(open_->rollback.run());
    FAULT_POINT("catalogue.committed");
    return committed;
}

Result<void> Catalogue::read_files(const std::function<void(CataloguedFile&&)>& visit) {
    SqlStatement& row = open_->files;
    for (;;) {
        FABRIC_TRY(const bool found, row.step());
        if (!found) break;
        CataloguedFile file;
        const bool is_sound = read_number(row, 0, file.id) && file.id != 0 &&
                              is_namespace_path(row.bytes(1)) && read_facts(row, 2, file.facts);
        file.path = row.bytes(1);
        // One that is not is left out: its chunks are fetched again.
        if (is_sound) visit(std::move(file));
    }
    row.reset();
    return {};
}

Result<void> Catalogue::read_slots(const std::function<void(const CataloguedSlot&)>& visit) {
    SqlStatement& row = open_->slots;
    for (;;) {
        FABRIC_TRY(const bool found, row.step());
        if (!found) break;
        CataloguedSlot slot;
        const bool is_sound =
            read_number(row, 0, slot.slot) && read_number(row, 1, slot.sequence) &&
            read_number(row, 2, slot.file) && read_number(row, 3, slot.number) &&
            read_number(row, 4, slot.bytes) && read_number(row, 5, slot.checksum) &&
            read_number(row, 6, slot.index_at);
        if (is_sound) visit(slot);
    }
    row.reset();
    return {};
}

Result<SiloPage> Catalogue::read_page(const std::string& folder, const std::string& after,
                                      std::size_t most) {
    FABRIC_TRY(const std::int64_t id, open_->folder_id(folder, true));
    SqlStatement& row = open_->page;
    row.bind(1, id);
    row.bind(2, after);
    row.bind(3, static_cast<std::int64_t>(most) + 1);
    SiloPage page;
    for (;;) {
        FABRIC_TRY(const bool found, row.step());
        if (!found) break;
        if (page.entries.size() == most) {
            page.is_last = false;
            break;
        }
        SiloEntry entry;
        entry.name = row.bytes(0);
        entry.is_folder = row.number(1) != 0;
        if (is_entry_name(entry.name) && read_facts(row, 2, entry.facts)) {
            page.entries.push_back(std::move(entry));
        } else if (page.left_out++ == 0) {
            page.first_left_out = printable(entry.name) + ": not as a catalogue has it";
        }
    }
    row.reset();
    return page;
}

Result<FileFacts> Catalogue::look(const std::string& path) {
    const auto slash = path.rfind('/');
    FABRIC_CHECK(slash != path.npos);
    FABRIC_TRY(const std::int64_t id, open_->folder_id(path.substr(0, slash), true));
    SqlStatement& row = open_->facts;
    const std::string name = path.substr(slash + 1);
    row.bind(1, id);
    row.bind(2, name);
    FABRIC_TRY(const bool found, row.step());
    FileFacts facts;
    const bool is_sound = found && read_facts(row, 0, facts);
    row.reset();
    if (!is_sound) return Error{Errc::kNotFound, 0, "catalogue"};
    return facts;
}

Result<std::vector<PutPlan>> Catalogue::read_plans() {
    SqlStatement& row = open_->plans;
    std::vector<PutPlan> plans;
    for (;;) {
        FABRIC_TRY(const bool found, row.step());
        if (!found) break;
        plans.push_back({std::string(row.bytes(0)), std::string(row.bytes(1))});
    }
    row.reset();
    return plans;
}

}  // namespace fabricd
