// Notifier: notifies the kernel of names that lead to other files now.
//
// A process of its own. To drop a name the kernel takes its folder's lock, which a reader may hold
// that waits for an answer of ours: a thread of the server that waits for it there can't end when
// the server is killed, and the keeper, which starts the next server when the last one has ended,
// would wait for ever. This process may wait; the next server answers the reader.

#pragma once

#include <string_view>

#include "fabricd/data/mount/node_table.hpp"
#include "libfabricshm/os/fd.hpp"

struct fuse_session;

namespace fabricd {

class Notifier {
  public:
    /// Forks: the calling process has no other threads yet. Ends with this process.
    static Result<Notifier> start(fuse_session* session);

    Notifier() = default;

    /// `name` of `parent` is another file, or none. Waits while the queue is full.
    Result<void> entry_changed(NodeNumber parent, std::string_view name) const;
    /// The entries of the folder are others.
    Result<void> folder_changed(NodeNumber folder) const;
    /// Returns when the kernel has taken all that was said before.
    Result<void> flush() const;

  private:
    struct Message;
    Result<void> send(const Message& message) const;

    fabricshm::Fd socket_;
};

}  // namespace fabricd
