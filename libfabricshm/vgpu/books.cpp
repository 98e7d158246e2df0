#include "libfabricshm/vgpu/books.hpp"

#include "libfabricshm/vgpu/driver.hpp"

namespace fabricshm::cuda {

void Book::put(std::uint64_t key, const Charge& charge) {
    const std::lock_guard lock(mutex_);
    charges_[key] = charge;
}

std::optional<Charge> Book::take(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = charges_.find(key);
    if (found == charges_.end()) return std::nullopt;
    const Charge charge = found->second;
    charges_.erase(found);
    return charge;
}

void Book::end_context(Handle context) {
    const std::lock_guard lock(mutex_);
    for (auto entry = charges_.begin(); entry != charges_.end();) {
        if (entry->second.context != context) {
            ++entry;
            continue;
        }
        entry->second.vgpu->release(entry->second.bytes);
        entry = charges_.erase(entry);
    }
}

// Never destroyed: programs free memory from destructors that run after ours would.
Book& pointers() {
    static Book& book = *new Book;
    return book;
}

Book& handles() {
    static Book& book = *new Book;
    return book;
}

Handle current_context() noexcept {
    Handle context = nullptr;
    const auto current = helpers().current_context;
    return current != nullptr && current(&context) == kSuccess ? context : nullptr;
}

}  // namespace fabricshm::cuda
