// Lasting: objects that stay until the process ends, since something that cannot be stopped, such
// as a kernel on a GPU, may still use what they own.

#pragma once

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace fabricshm {

/// One list for each type of owner. Any thread.
template <typename Owner>
class Lasting {
  public:
    static void keep(Owner owner) {
        List& list = all();
        const std::lock_guard lock(list.mutex);
        list.owners.push_back(std::move(owner));
    }

    /// The first of which is_it(owner) is true; null: there is none. Owners that can be copied.
    template <typename Predicate>
    static Owner find(const Predicate& is_it) {
        List& list = all();
        const std::lock_guard lock(list.mutex);
        const auto found = std::find_if(list.owners.begin(), list.owners.end(), is_it);
        return found != list.owners.end() ? *found : Owner();
    }

  private:
    struct List {
        std::mutex mutex;
        std::vector<Owner> owners;
    };
    // Never destroyed: not when the process ends either, when other threads may be at work.
    static List& all() {
        static auto& made = *new List;
        return made;
    }
};

}  // namespace fabricshm
