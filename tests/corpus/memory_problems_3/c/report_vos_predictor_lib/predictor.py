import torch
from torch.nn import functional as F


class VideoPredictor:
    def __init__(self, model, video_size=(720, 1280), device="cuda"):
        self.model = model.eval().to(device)
        self.video_size = video_size
        self.device = device

    def init_state(self, video):
        return {
            "video": video,
            "num_frames": len(video),
            "cached_features": {},
            "output_dict": {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}},
        }

    def _features(self, state, frame_idx):
        cached = state["cached_features"].get(frame_idx)
        if cached is None:
            frame = state["video"][frame_idx].unsqueeze(0).to(self.device)
            cached = self.model.forward_image(frame)
            state["cached_features"] = {frame_idx: cached}
        return cached

    def _memories(self, state, frame_idx):
        outputs = state["output_dict"]
        chosen = [out["maskmem_features"] for out in outputs["cond_frame_outputs"].values()]
        for back in range(1, self.model.num_maskmem):
            previous = outputs["non_cond_frame_outputs"].get(frame_idx - back)
            if previous is not None:
                chosen.append(previous["maskmem_features"])
        return chosen

    def _run_single_frame(self, state, frame_idx):
        features = self._features(state, frame_idx)
        masks, pointer, memory = self.model.track(features, self._memories(state, frame_idx))
        return {
            "pred_masks": masks,
            "pred_masks_high_res": F.interpolate(masks, scale_factor=16, mode="bilinear"),
            "maskmem_features": memory,
            "obj_ptr": pointer,
        }

    @torch.inference_mode()
    def add_new_box(self, state, frame_idx, box):
        out = self._run_single_frame(state, frame_idx)
        state["output_dict"]["cond_frame_outputs"][frame_idx] = out
        return out["pred_masks"]

    @torch.inference_mode()
    def propagate_in_video(self, state, start=1):
        for frame_idx in range(start, state["num_frames"]):
            current_out = self._run_single_frame(state, frame_idx)
            state["output_dict"]["non_cond_frame_outputs"][frame_idx] = current_out
            video_masks = F.interpolate(current_out["pred_masks"], size=self.video_size, mode="bilinear")
            yield frame_idx, video_masks > 0.0
