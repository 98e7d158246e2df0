// DashboardPages: which request gets what, and which gets nothing.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fabricd/ctl/dashboard/picture_keeper.hpp"
#include "fabricd/http/http_server.hpp"

namespace fabricd {

struct DashboardDoor {
    std::string token;  // what a client has to know to see anything of the daemon
    /// Besides those of the loopback, which are always taken: what a web server in front of us
    /// calls itself. A page of another name is one that makes a browser ask for it (DNS rebinding).
    std::vector<std::string> hosts;
};

/// The page's files to all; "/api/v1/picture?since=N" and the rest of a PictureQuery to clients
/// that show the token: 304 when N is the newest, with the history when there is no N. Nothing can
/// be changed here.
class DashboardPages : public HttpPages {
  public:
    using NewestPicture = std::function<PictureKeeper::Newest(const PictureQuery& query)>;

    DashboardPages(DashboardDoor door, NewestPicture newest);

    HttpAnswer answer(const HttpRequest& request) override;

  private:
    bool is_known_host(std::string_view host) const;
    HttpAnswer picture(const HttpRequest& request) const;

    const DashboardDoor door_;
    const NewestPicture newest_;
};

}  // namespace fabricd
