// Mock driver: the tables of cuGetExportTable, of which NVIDIA documents nothing and without which
// the CUDA runtime does not start.
//
// A table is an array of functions; in most the first element is the array's size in bytes instead.
// Which tables the runtimes that docs/vgpu.md names ask for, which slots they call and with what
// was seen by trial; what some slots mean others have published. A slot that none of them called
// ends the program.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"

using namespace mock_gpu;

extern "C" Status cuModuleLoadData(Handle*, const void*);

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

enum TableName : int { kRuntime, kTools, kThreads, kStorage, kStart, kProof, kTableCount };

// How they begin; their real names are not public.
constexpr const char* kNames[kTableCount] = {"6bd5fb6c", "a094798c", "42d85a81",
                                             "c693336e", "263e8860", "d4082055"};

constexpr Uuid kIds[kTableCount] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9}},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66}},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc}},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93}},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e}},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2}},
};

// As many as were ever asked for, and some more, so that a call of the next one is heard as well.
constexpr std::size_t kSlots = 32;

template <int kTable, std::size_t kSlot>
[[noreturn]] Status unknown_slot() {
    std::fprintf(stderr, "mock GPU: the runtime calls slot %zu of the driver's table %s, unknown\n",
                 kSlot, kNames[kTable]);
    std::abort();
}

struct Table {
    void* slots[kSlots];
};

template <int kTable, std::size_t... kSlot>
Table unknown_table(std::index_sequence<kSlot...>) {
    return {{reinterpret_cast<void*>(&unknown_slot<kTable, kSlot>)...}};
}

// --- The runtime's own table ---

// The context that a device's users share; the runtime asks before it is made.
Status primary_context(Handle* out, fabricshm::cuda::Device) {
    *out = &driver().primary;
    return kSuccess;
}

// The program's device code: a module as cuModuleLoadData makes one, from what nvcc put into the
// program (the second parameter).
Status load_code(Handle* out, const void* image) {
    return cuModuleLoadData(out, image);
}

// At the program's end, with the same image; the module ended with its context.
Status forget_code(const void*) {
    return kSuccess;
}

// --- Tools that listen to the runtime: a switch for each of its functions, all off ---

constexpr std::size_t kSwitches = 1024;

Status switches(void** out, std::size_t* count) {
    static std::uint64_t all_off[kSwitches];
    *out = all_off;
    *count = kSwitches;
    return kSuccess;
}

Status more_switches(void** out, std::size_t* count) {
    static std::uint64_t all_off[kSwitches];
    *out = all_off;
    *count = kSwitches;
    return kSuccess;
}

// --- What the runtime keeps with a context ---

constexpr Status kNotThere = 400;  // what the runtime takes for "keep something first"

using Key = std::pair<Handle, const void*>;

std::map<Key, void*>& kept() {
    static auto& made = *new std::map<Key, void*>;
    return made;
}

// Null: the calling thread's.
Handle or_current(Handle context) {
    return context != nullptr ? context : current();
}

// The last parameter is called when the context ends; ours end with the process.
Status keep(Handle context, const void* key, void* value, void (*)(Handle, void*, void*)) {
    const Lock lock(driver().mutex);
    kept()[{or_current(context), key}] = value;
    return kSuccess;
}

Status drop(Handle context, const void* key) {
    const Lock lock(driver().mutex);
    return kept().erase({or_current(context), key}) > 0 ? kSuccess : kNotThere;
}

Status find(void** out, Handle context, const void* key) {
    const Lock lock(driver().mutex);
    const auto found = kept().find({or_current(context), key});
    if (found == kept().end()) return kNotThere;
    *out = found->second;
    return kSuccess;
}

// --- Since CUDA 11.2: the runtime tests whether this is NVIDIA's driver ---

// It is not and does not claim to be: it leaves the place for the answer empty, and each call of
// the program ends with cudaErrorSoftwareValidityNotEstablished.
Status no_proof() {
    return kSuccess;
}

// CUDA 13 says once that it starts; nothing comes of it.
Status noted() {
    return kSuccess;
}

struct Tables {
    Table all[kTableCount];

    Tables()
        : all{unknown_table<kRuntime>(std::make_index_sequence<kSlots>{}),
              unknown_table<kTools>(std::make_index_sequence<kSlots>{}),
              unknown_table<kThreads>(std::make_index_sequence<kSlots>{}),
              unknown_table<kStorage>(std::make_index_sequence<kSlots>{}),
              unknown_table<kStart>(std::make_index_sequence<kSlots>{}),
              unknown_table<kProof>(std::make_index_sequence<kSlots>{})} {
        for (const TableName sized : {kRuntime, kTools, kThreads, kStart, kProof}) {
            all[sized].slots[0] = reinterpret_cast<void*>(sizeof(Table));
        }
        all[kRuntime].slots[2] = reinterpret_cast<void*>(&primary_context);
        all[kRuntime].slots[6] = reinterpret_cast<void*>(&load_code);
        all[kRuntime].slots[7] = reinterpret_cast<void*>(&forget_code);
        all[kTools].slots[2] = reinterpret_cast<void*>(&switches);
        all[kTools].slots[6] = reinterpret_cast<void*>(&more_switches);
        all[kStorage].slots[0] = reinterpret_cast<void*>(&keep);
        all[kStorage].slots[1] = reinterpret_cast<void*>(&drop);
        all[kStorage].slots[2] = reinterpret_cast<void*>(&find);
        all[kStart].slots[3] = reinterpret_cast<void*>(&noted);
        all[kProof].slots[1] = reinterpret_cast<void*>(&no_proof);
    }
};

}  // namespace

MOCK_EXPORT Status cuGetExportTable(const void** out, const Uuid* which) {
    static const Tables tables;
    for (int i = 0; i < kTableCount; ++i) {
        if (std::memcmp(kIds[i].bytes, which->bytes, sizeof which->bytes) != 0) continue;
        *out = tables.all[i].slots;
        return kSuccess;
    }
    return kNotFound;
}
