"""Written by `python -m tests.public` from the ``model_types`` that classes of preprocessors state.

The tables map the names of classes to modules below ``transept.preprocess`` or classes of users, and model types to names.
"""

from typing import Any

IMAGE_PROCESSORS: dict[str, Any] = {
    "BeitImageProcessor": "image.beit",
    "BitImageProcessor": "image.clip",
    "BlipImageProcessor": "image.blip",
    "CLIPImageProcessor": "image.clip",
    "ConvNextImageProcessor": "image.convnext",
    "DPTImageProcessor": "image.dpt",
    "DeiTImageProcessor": "image.vit",
    "DetrImageProcessor": "image.detr",
    "LayoutLMv3ImageProcessor": "image.layoutlmv3",
    "LlavaImageProcessor": "image.llava",
    "Qwen2VLImageProcessor": "image.qwen2_vl",
    "SegformerImageProcessor": "image.segformer",
    "SiglipImageProcessor": "image.siglip",
    "ViTImageProcessor": "image.vit",
}
IMAGE_PROCESSORS_OF_TYPES = {
    "beit": "BeitImageProcessor",
    "blip": "BlipImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "convnext": "ConvNextImageProcessor",
    "deit": "DeiTImageProcessor",
    "depth_anything": "DPTImageProcessor",
    "detr": "DetrImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dpt": "DPTImageProcessor",
    "layoutlmv3": "LayoutLMv3ImageProcessor",
    "llava": "LlavaImageProcessor",
    "qwen2_5_vl": "Qwen2VLImageProcessor",
    "qwen2_vl": "Qwen2VLImageProcessor",
    "resnet": "ConvNextImageProcessor",
    "segformer": "SegformerImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
    "swin": "ViTImageProcessor",
    "trocr": "ViTImageProcessor",
    "vit": "ViTImageProcessor",
}
VIDEO_PROCESSORS: dict[str, Any] = {
    "Qwen2VLVideoProcessor": "image.qwen2_vl",
}
VIDEO_PROCESSORS_OF_TYPES = {
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen2_vl": "Qwen2VLVideoProcessor",
}
FEATURE_EXTRACTORS: dict[str, Any] = {
    "ASTFeatureExtractor": "audio.audio_spectrogram_transformer",
    "Wav2Vec2FeatureExtractor": "audio.wav2vec2",
    "WhisperFeatureExtractor": "audio.whisper",
}
FEATURE_EXTRACTORS_OF_TYPES = {
    "audio-spectrogram-transformer": "ASTFeatureExtractor",
    "hubert": "Wav2Vec2FeatureExtractor",
    "wav2vec2": "Wav2Vec2FeatureExtractor",
    "wavlm": "Wav2Vec2FeatureExtractor",
    "whisper": "WhisperFeatureExtractor",
}
PROCESSORS: dict[str, Any] = {
    "BlipProcessor": "processors.blip",
    "CLIPProcessor": "processors.clip",
    "LayoutLMv3Processor": "processors.layoutlmv3",
    "LlavaProcessor": "processors.llava",
    "Qwen2VLProcessor": "processors.qwen2_vl",
    "Qwen2_5_VLProcessor": "processors.qwen2_vl",
    "SiglipProcessor": "processors.siglip",
    "TrOCRProcessor": "processors.trocr",
    "Wav2Vec2Processor": "processors.wav2vec2",
    "WhisperProcessor": "processors.whisper",
}
PROCESSORS_OF_TYPES = {
    "blip": "BlipProcessor",
    "clip": "CLIPProcessor",
    "hubert": "Wav2Vec2Processor",
    "layoutlmv3": "LayoutLMv3Processor",
    "llava": "LlavaProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen2_vl": "Qwen2VLProcessor",
    "siglip": "SiglipProcessor",
    "trocr": "TrOCRProcessor",
    "wav2vec2": "Wav2Vec2Processor",
    "wavlm": "Wav2Vec2Processor",
    "whisper": "WhisperProcessor",
}
