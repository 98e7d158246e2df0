// dlsym and dlvsym under their own names: the CUDA runtime finds the driver's functions with them.
//
// RTLD_NEXT means "after the library that calls", which the C library tells by the address the call
// returns to. So names that are none of ours must reach the real function by a jump, with the
// caller's return address still on the stack; hence the few instructions of assembly.

#ifndef FABRIC_NO_DLSYM_HOOK

#include <dlfcn.h>

#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/elf_symbols.hpp"
#include "libfabricshm/vgpu/hooks.hpp"

namespace fabricshm::cuda {

extern "C" {

__attribute__((visibility("hidden"))) void* fabricvgpu_real_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* fabricvgpu_real_dlvsym = nullptr;

// Our function for `name`, or nullptr: ask the C library. Finds its functions on the first call,
// which may be long before this library's constructors.
__attribute__((visibility("hidden"))) void* fabricvgpu_choose(const char* name) noexcept {
    if (fabricvgpu_real_dlsym == nullptr) {
        fabricvgpu_real_dlvsym = libc_symbol("dlvsym");
        fabricvgpu_real_dlsym = libc_symbol("dlsym");
    }
    const EntryInfo* line = find_entry(name);
    if (line == nullptr) return nullptr;
    const auto entry = static_cast<Entry>(line - &info_of(static_cast<Entry>(0)));
    // What this driver has not, the program shall not find either.
    return real_address(entry) != nullptr ? line->wrapper : nullptr;
}
}

#if defined(__x86_64__)
// Arguments: rdi handle, rsi name, rdx version. They are kept across the call; the stack is then
// aligned to 16 bytes, as the ABI wants it at a call.
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
extern "C" FABRICVGPU_EXPORT void* dlsym(void* handle, const char* name) noexcept {
    void* own = fabricvgpu_choose(name);
    using Dlsym = void* (*)(void*, const char*);
    return own != nullptr ? own : reinterpret_cast<Dlsym>(fabricvgpu_real_dlsym)(handle, name);
}
#endif

}  // namespace fabricshm::cuda

#endif  // FABRIC_NO_DLSYM_HOOK
