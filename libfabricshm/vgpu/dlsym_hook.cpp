// dlsym and dlvsym under their own names: the CUDA runtime finds the driver's functions with them.
//
// RTLD_NEXT means "after the library that calls", which the C library finds by the address the call
// returns to. So names that are none of ours must reach the real function by a jump, with the
// caller's return address still on the stack; hence the few instructions of assembly.

#ifndef FABRIC_NO_DLSYM_HOOK

#include <dlfcn.h>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/elf_symbols.hpp"
#include "libfabricshm/vgpu/hooks.hpp"

namespace fabricshm::cuda {

extern "C" {

// Plain words, since the assembly below jumps through them. Hidden: reached relative to the
// instruction and not through a table that the dynamic linker may not have filled yet.
__attribute__((visibility("hidden"))) void* fabricvgpu_real_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* fabricvgpu_real_dlvsym = nullptr;

// Our function for `name`, or nullptr: ask the C library. Finds its functions on the first call,
// which may be long before this library's constructors.
__attribute__((visibility("hidden"))) void* fabricvgpu_choose(const char* name) noexcept {
    // Release and acquire: a thread that finds dlsym's address also finds dlvsym's. Two threads may
    // look both up at the same time, and store the same.
    if (__atomic_load_n(&fabricvgpu_real_dlsym, __ATOMIC_ACQUIRE) == nullptr) {
        __atomic_store_n(&fabricvgpu_real_dlvsym, libc_symbol("dlvsym"), __ATOMIC_RELAXED);
        __atomic_store_n(&fabricvgpu_real_dlsym, libc_symbol("dlsym"), __ATOMIC_RELEASE);
    }
    const EntryInfo* line = find_entry(name);
    if (line == nullptr) return nullptr;
    // Whatever handle the program gave: one of another library that has these names would be
    // another shim, or the driver under a name of its own, and both would be passed by.
    const auto entry = static_cast<Entry>(line - &info_of(static_cast<Entry>(0)));
    // What this driver has not, the program shall not find either.
    return real_address(entry) != nullptr ? line->wrapper : nullptr;
}
}

#if defined(__x86_64__)
// Arguments: rdi handle, rsi name, rdx version. They are kept across the call; the stack is then
// aligned to 16 bytes (three words and the return address), as the ABI wants it at a call. Nothing
// passes through here as an exception, so there are no tables to unwind by.
#define FABRIC_DLSYM_HOOK(name, next)                              \
    asm(".text\n.globl " name "\n.type " name ", @function\n" name \
        ":\n"                                                      \
        "    push %rdi\n    push %rsi\n    push %rdx\n"            \
        "    mov %rsi, %rdi\n"                                     \
        "    call fabricvgpu_choose\n"                             \
        "    pop %rdx\n    pop %rsi\n    pop %rdi\n"               \
        "    test %rax, %rax\n    jne 1f\n"                        \
        "    jmp *" next                                           \
        "(%rip)\n"                                                 \
        "1:  ret\n.size " name ", .-" name "\n")
FABRIC_DLSYM_HOOK("dlsym", "fabricvgpu_real_dlsym");
FABRIC_DLSYM_HOOK("dlvsym", "fabricvgpu_real_dlvsym");
#else
// Elsewhere without the jump: RTLD_NEXT means the library after this one, and dlvsym, by which no
// program was observed to look up the driver, stays the C library's.
extern "C" FABRICVGPU_EXPORT void* dlsym(void* handle, const char* name) noexcept {
    void* own = fabricvgpu_choose(name);
    using Dlsym = void* (*)(void*, const char*);
    return own != nullptr ? own : reinterpret_cast<Dlsym>(fabricvgpu_real_dlsym)(handle, name);
}
#endif

}  // namespace fabricshm::cuda

#endif  // FABRIC_NO_DLSYM_HOOK
