#include "libfabricshm/vgpu/elf_symbols.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>

namespace fabricshm::cuda {

namespace {

// What the dynamic section of a loaded library says about its symbols.
struct Symbols {
    ElfW(Addr) base = 0;
    const ElfW(Sym) * table = nullptr;
    const char* names = nullptr;
    const std::uint32_t* gnu_hash = nullptr;
};

Symbols symbols_in(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept {
    Symbols found;
    found.base = base;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        // glibc turns these into addresses when it loads a library, on most machines; where it
        // leaves them as they are in the file they are small offsets, and no library lies that low.
        const ElfW(Addr) value = dynamic->d_un.d_ptr;
        const ElfW(Addr) place = value < base ? base + value : value;
        if (dynamic->d_tag == DT_SYMTAB) {
            found.table = reinterpret_cast<const ElfW(Sym)*>(place);
        } else if (dynamic->d_tag == DT_STRTAB) {
            found.names = reinterpret_cast<const char*>(place);
        } else if (dynamic->d_tag == DT_GNU_HASH) {
            found.gnu_hash = reinterpret_cast<const std::uint32_t*>(place);
        }
    }
    return found;
}

// Calls `take` with each symbol that the hash table knows (all that are defined and exported).
template <typename Take>
void for_each_symbol(const Symbols& symbols, Take take) {
    if (symbols.table == nullptr || symbols.names == nullptr || symbols.gnu_hash == nullptr) return;
    // Header: buckets, first symbol, words of the Bloom filter, its shift. Then that filter (of
    // machine words), the buckets, and a chain for each bucket whose last word has its low bit set.
    const std::uint32_t bucket_count = symbols.gnu_hash[0];
    const std::uint32_t first = symbols.gnu_hash[1];
    const std::uint32_t bloom_words = symbols.gnu_hash[2];
    const auto* buckets =
        symbols.gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
    const auto* chains = buckets + bucket_count;
    // The table itself has no length anywhere; the chains are the only way to where it ends.
    for (std::uint32_t bucket = 0; bucket < bucket_count; ++bucket) {
        for (std::uint32_t i = buckets[bucket]; i >= first && i != 0; ++i) {
            take(symbols.table[i]);
            if ((chains[i - first] & 1) != 0) break;
        }
    }
}

// Not the C library's: a sanitizer has one of its own, which can't run as early as we may be asked.
bool is_same(const char* a, const char* b) noexcept {
    while (*a != '\0' && *a == *b) {
        ++a;
        ++b;
    }
    return *a == *b;
}

// The last part of a path.
const char* file_of(const char* path) noexcept {
    const char* file = path;
    for (; *path != '\0'; ++path) {
        if (*path == '/') file = path + 1;
    }
    return file;
}

struct Search {
    const char* name;
    void* found;
};

int look_into(dl_phdr_info* library, std::size_t, void* data) {
    auto& search = *static_cast<Search*>(data);
    const char* file = file_of(library->dlpi_name);
    // Before glibc 2.34, dlsym was in a library of its own.
    const bool is_libc = is_same(file, "libc.so.6") || is_same(file, "libdl.so.2");
    if (!is_libc) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const auto* dynamic =
            reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
        const Symbols symbols = symbols_in(library->dlpi_addr, dynamic);
        // Versions are ignored: glibc has had dlsym under two (2.2.5 and, when it moved here,
        // 2.34), which are one function.
        for_each_symbol(symbols, [&](const ElfW(Sym) & symbol) {
            if (!is_same(symbols.names + symbol.st_name, search.name)) return;
            search.found = reinterpret_cast<void*>(symbols.base + symbol.st_value);
        });
    }
    return search.found != nullptr ? 1 : 0;
}

}  // namespace

void* libc_symbol(const char* name) noexcept {
    Search search{name, nullptr};
    ::dl_iterate_phdr(look_into, &search);
    return search.found;
}

std::vector<std::string> exported_names(void* handle) {
    std::vector<std::string> names;
    link_map* map = nullptr;
    // A handle of glibc is its link map; dlinfo is the documented way to say so.
    if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return names;
    const Symbols symbols = symbols_in(map->l_addr, map->l_ld);
    for_each_symbol(symbols, [&](const ElfW(Sym) & symbol) {
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) return;
        names.emplace_back(symbols.names + symbol.st_name);
    });
    return names;
}

}  // namespace fabricshm::cuda
