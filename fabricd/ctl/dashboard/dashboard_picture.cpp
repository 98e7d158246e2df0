#include "fabricd/ctl/dashboard/dashboard_picture.hpp"

#include "fabricd/ctl/cluster_commands.hpp"
#include "fabricd/ctl/decision_view.hpp"
#include "fabricd/ctl/json_view.hpp"
#include "fabricd/ctl/operator_commands.hpp"
#include "fabricd/ctl/vgpu_commands.hpp"

namespace fabricd {

Json json_of(const DashboardPicture& all) {
    Json json = json_of(all.picture, View::kTop);
    for (const View view : {View::kPools, View::kDevices, View::kWaiting, View::kShards}) {
        json.update(json_of(all.picture, view));
    }
    json.update(json_of(all.vgpus));
    json.update(json_of(all.events));
    json["cluster"] = json_of(all.cluster);
    json["decisions"] = Json::array();
    for (const Decision& decision : all.decisions) {
        Json one = json_of(decision);
        one["why"] = why_text(decision);
        json["decisions"].push_back(std::move(one));
    }
    return json;
}

}  // namespace fabricd
