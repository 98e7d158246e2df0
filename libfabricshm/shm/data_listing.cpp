#include "libfabricshm/shm/data_listing.hpp"

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricshm {

namespace {

// "a/b": no empty name, no "." or "..", no zero byte.
bool is_relative_path(std::string_view path) noexcept {
    if (path.empty() || path.find('\0') != path.npos) return false;
    for (std::size_t begin = 0;;) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view name = path.substr(begin, end - begin);
        if (name.empty() || name == "." || name == "..") return false;
        if (end == path.size()) return true;
        begin = end + 1;
    }
}

bool has_its_lines(const DataEntry& entry, std::uint64_t lines) noexcept {
    const bool is_folder = (entry.flags & kEntryFolder) != 0;
    if (is_folder || entry.bytes == 0) return entry.first_line == kNoLine;
    const std::uint64_t chunks = data_chunks(entry.bytes);
    return entry.file != 0 && entry.first_line < lines && chunks <= lines - entry.first_line;
}

}  // namespace

std::vector<std::byte> build_listing(const ListingName& name, std::span<const ListedFile> files) {
    Bytes names_bytes = 0;
    for (const ListedFile& file : files) names_bytes += file.name.size();
    std::vector<std::byte> bytes(sizeof(DataListing) + files.size() * sizeof(DataEntry) +
                                 names_bytes);
    DataListing header{};
    header.magic = kListingMagic;
    header.generation = name.generation;
    header.id = name.id;
    header.entries = files.size();
    header.names_bytes = names_bytes;
    header.flags = name.flags;
    std::memcpy(bytes.data(), &header, sizeof header);
    std::byte* entries = bytes.data() + sizeof header;
    std::byte* names = entries + files.size() * sizeof(DataEntry);
    Bytes name_offset = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
        const ListedFile& file = files[i];
        FABRIC_DCHECK(i == 0 || files[i - 1].name < file.name);
        DataEntry entry{};
        entry.bytes = file.bytes;
        entry.first_line = file.first_line;
        entry.name_offset = name_offset;
        entry.name_bytes = static_cast<std::uint32_t>(file.name.size());
        entry.flags = file.is_folder ? kEntryFolder : 0;
        std::copy(file.version.begin(), file.version.end(), entry.version);
        entry.file = file.file;
        entry.mtime_ns = file.mtime_ns;
        std::memcpy(entries + i * sizeof entry, &entry, sizeof entry);
        std::memcpy(names + name_offset, file.name.data(), file.name.size());
        name_offset += file.name.size();
    }
    return bytes;
}

Result<ListingView> ListingView::check(std::span<const std::byte> bytes, std::uint64_t lines) {
    const Error corrupt{Errc::kCorrupt, 0, "check listing"};
    DataListing header;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 == 0;
    if (bytes.size() < sizeof header || !is_aligned) return corrupt;
    std::memcpy(&header, bytes.data(), sizeof header);
    const bool is_known = header.magic == kListingMagic && header.generation != 0 &&
                          header.id != 0 && (header.flags & ~kListingRecursive) == 0;
    if (!is_known) return corrupt;
    const Bytes room = bytes.size() - sizeof header;
    if (header.entries > room / sizeof(DataEntry) ||
        header.names_bytes != room - header.entries * sizeof(DataEntry)) {
        return corrupt;
    }
    ListingView view;
    view.name_ = {header.generation, header.id, header.flags};
    const auto* entries = reinterpret_cast<const DataEntry*>(bytes.data() + sizeof header);
    view.entries_ = {entries, header.entries};
    view.names_ = {reinterpret_cast<const char*>(entries + header.entries), header.names_bytes};
    for (std::uint64_t i = 0; i < view.size(); ++i) {
        const DataEntry& entry = view.entry(i);
        const bool is_inside = entry.name_offset <= header.names_bytes &&
                               entry.name_bytes <= header.names_bytes - entry.name_offset;
        if (!is_inside || !is_relative_path(view.name(i)) || !has_its_lines(entry, lines)) {
            return corrupt;
        }
        if (i != 0 && !(view.name(i - 1) < view.name(i))) return corrupt;
    }
    return view;
}

std::optional<std::uint64_t> ListingView::find(std::string_view name) const noexcept {
    std::uint64_t begin = 0;
    std::uint64_t end = size();
    while (begin < end) {
        const std::uint64_t middle = begin + (end - begin) / 2;
        if (this->name(middle) < name) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    if (begin == size() || this->name(begin) != name) return std::nullopt;
    return begin;
}

}  // namespace fabricshm
