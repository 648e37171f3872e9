"""Written by `python -m tests.public`; both the runtime index of public names and what editors see."""

from transept.adapt.features import precompute as precompute
from transept.adapt.freeze import (
    freeze as freeze,
    gradual_unfreezing as gradual_unfreezing,
    layer_groups as layer_groups,
    unfreeze as unfreeze,
    unfreeze_until as unfreeze_until,
)
from transept.adapt.lora import (
    LoraConfig as LoraConfig,
    TaskType as TaskType,
)
from transept.adapt.peft import (
    PeftModel as PeftModel,
    get_peft_model as get_peft_model,
)
from transept.cli.dataclass_parser import HfArgumentParser as HfArgumentParser
from transept.compat.attention import AttentionInterface as AttentionInterface
from transept.config.model import (
    Config as Config,
    PreTrainedConfig as PreTrainedConfig,
    PretrainedConfig as PretrainedConfig,
)
from transept.config.rotary import RotaryConfig as RotaryConfig
from transept.core.auto import (
    AutoBackbone as AutoBackbone,
    AutoConfig as AutoConfig,
    AutoModel as AutoModel,
    AutoModelForAudioClassification as AutoModelForAudioClassification,
    AutoModelForAudioFrameClassification as AutoModelForAudioFrameClassification,
    AutoModelForAudioXVector as AutoModelForAudioXVector,
    AutoModelForCTC as AutoModelForCTC,
    AutoModelForCausalLM as AutoModelForCausalLM,
    AutoModelForDepthEstimation as AutoModelForDepthEstimation,
    AutoModelForDocumentQuestionAnswering as AutoModelForDocumentQuestionAnswering,
    AutoModelForImageClassification as AutoModelForImageClassification,
    AutoModelForImageSegmentation as AutoModelForImageSegmentation,
    AutoModelForImageTextToText as AutoModelForImageTextToText,
    AutoModelForMaskedImageModeling as AutoModelForMaskedImageModeling,
    AutoModelForMaskedLM as AutoModelForMaskedLM,
    AutoModelForMultipleChoice as AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction as AutoModelForNextSentencePrediction,
    AutoModelForObjectDetection as AutoModelForObjectDetection,
    AutoModelForPreTraining as AutoModelForPreTraining,
    AutoModelForQuestionAnswering as AutoModelForQuestionAnswering,
    AutoModelForReconstruction as AutoModelForReconstruction,
    AutoModelForSemanticSegmentation as AutoModelForSemanticSegmentation,
    AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq as AutoModelForSpeechSeq2Seq,
    AutoModelForTableQuestionAnswering as AutoModelForTableQuestionAnswering,
    AutoModelForTokenClassification as AutoModelForTokenClassification,
    AutoModelForUniversalSegmentation as AutoModelForUniversalSegmentation,
    AutoModelForVision2Seq as AutoModelForVision2Seq,
    AutoModelForVisualQuestionAnswering as AutoModelForVisualQuestionAnswering,
    AutoModelForZeroShotImageClassification as AutoModelForZeroShotImageClassification,
)
from transept.core.classes import own_forward as own_forward
from transept.core.custom import PreTrainedModel as PreTrainedModel
from transept.core.inputs import (
    Packing as Packing,
    RecordOptions as RecordOptions,
    before as before,
    calling as calling,
    check_by_position as check_by_position,
    check_finite as check_finite,
    check_range as check_range,
    check_tensor as check_tensor,
    declared_texts as declared_texts,
    given_states as given_states,
    inferred_texts as inferred_texts,
    places_within as places_within,
    readable as readable,
)
from transept.core.model import (
    Backbone as Backbone,
    Model as Model,
)
from transept.environment.packages import (
    is_accelerate_available as is_accelerate_available,
    is_datasets_available as is_datasets_available,
    is_flax_available as is_flax_available,
    is_peft_available as is_peft_available,
    is_sentencepiece_available as is_sentencepiece_available,
    is_tf_available as is_tf_available,
    is_tokenizers_available as is_tokenizers_available,
    is_torch_available as is_torch_available,
    is_torch_cuda_available as is_torch_cuda_available,
    is_vision_available as is_vision_available,
    set_seed as set_seed,
)
from transept.errors import (
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    FileError as FileError,
    FormatError as FormatError,
    GenerationError as GenerationError,
    InputError as InputError,
    InputTypeError as InputTypeError,
    MissingExtraError as MissingExtraError,
    MissingNameError as MissingNameError,
    TrainingError as TrainingError,
    TranseptError as TranseptError,
    TranseptWarning as TranseptWarning,
    UnsupportedError as UnsupportedError,
    VersionError as VersionError,
    naming as naming,
    nearest as nearest,
    refuse as refuse,
)
from transept.generation.config import (
    CompileConfig as CompileConfig,
    GenerationConfig as GenerationConfig,
    GenerationMode as GenerationMode,
)
from transept.generation.logits_processors import (
    EncoderNoRepeatNGramLogitsProcessor as EncoderNoRepeatNGramLogitsProcessor,
    FiniteLogitsCheck as FiniteLogitsCheck,
    ForcedBOSTokenLogitsProcessor as ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor as ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor as InfNanRemoveLogitsProcessor,
    LogitsProcessor as LogitsProcessor,
    LogitsProcessorList as LogitsProcessorList,
    MinLengthLogitsProcessor as MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor as MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor as NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor as NoRepeatNGramLogitsProcessor,
    NonFiniteError as NonFiniteError,
    PrefixConstrainedLogitsProcessor as PrefixConstrainedLogitsProcessor,
    SequenceBiasLogitsProcessor as SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor as SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor as SuppressTokensLogitsProcessor,
)
from transept.generation.logits_warpers import (
    ClassifierFreeGuidanceLogitsProcessor as ClassifierFreeGuidanceLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor as EncoderRepetitionPenaltyLogitsProcessor,
    EpsilonLogitsWarper as EpsilonLogitsWarper,
    EtaLogitsWarper as EtaLogitsWarper,
    ExponentialDecayLengthPenalty as ExponentialDecayLengthPenalty,
    HammingDiversityLogitsProcessor as HammingDiversityLogitsProcessor,
    LogitNormalization as LogitNormalization,
    MinPLogitsWarper as MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor as RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper as TemperatureLogitsWarper,
    TopHLogitsWarper as TopHLogitsWarper,
    TopKLogitsWarper as TopKLogitsWarper,
    TopPLogitsWarper as TopPLogitsWarper,
    TypicalLogitsWarper as TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor as UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transept.generation.outputs import (
    AsyncTextIteratorStreamer as AsyncTextIteratorStreamer,
    BaseStreamer as BaseStreamer,
    GenerateBeamDecoderOnlyOutput as GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput as GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput as GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput as GenerateEncoderDecoderOutput,
    Piece as Piece,
    TextIteratorStreamer as TextIteratorStreamer,
    TextStreamer as TextStreamer,
)
from transept.generation.penalties import (
    FrequencyPenaltyLogitsProcessor as FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor as PresencePenaltyLogitsProcessor,
)
from transept.generation.rules import (
    SynthIDTextWatermarkingConfig as SynthIDTextWatermarkingConfig,
    WatermarkingConfig as WatermarkingConfig,
)
from transept.generation.stopping_criteria import (
    ConfidenceCriteria as ConfidenceCriteria,
    EosTokenCriteria as EosTokenCriteria,
    MaxLengthCriteria as MaxLengthCriteria,
    MaxTimeCriteria as MaxTimeCriteria,
    StopStringCriteria as StopStringCriteria,
    StoppingCriteria as StoppingCriteria,
    StoppingCriteriaList as StoppingCriteriaList,
)
from transept.generation.watermark import (
    SynthIDTextWatermarkLogitsProcessor as SynthIDTextWatermarkLogitsProcessor,
    WatermarkDetector as WatermarkDetector,
    WatermarkDetectorOutput as WatermarkDetectorOutput,
    WatermarkLogitsProcessor as WatermarkLogitsProcessor,
)
from transept.kinds.audio import (
    AudioBackbone as AudioBackbone,
    SoundBackbone as SoundBackbone,
    WaveConfig as WaveConfig,
)
from transept.kinds.image import (
    ImageBackbone as ImageBackbone,
    PatchBackbone as PatchBackbone,
    check_images as check_images,
    check_patches as check_patches,
)
from transept.kinds.text import (
    CausalBackbone as CausalBackbone,
    DecoderOptions as DecoderOptions,
    Options as Options,
    PackedOptions as PackedOptions,
    TextBackbone as TextBackbone,
    unpadded as unpadded,
)
from transept.layers.caches.cache import (
    Cache as Cache,
    DynamicCache as DynamicCache,
    EncoderDecoderCache as EncoderDecoderCache,
    SlidingWindowCache as SlidingWindowCache,
)
from transept.layers.caches.offloaded import OffloadedCache as OffloadedCache
from transept.layers.caches.quantized import QuantizedCache as QuantizedCache
from transept.layers.caches.static import StaticCache as StaticCache
from transept.layers.mlp import apply_chunking_to_forward as apply_chunking_to_forward
from transept.layers.pool import pooled_alone as pooled_alone
from transept.metrics import get_metric as get_metric
from transept.metrics.embeddings import (
    alignment as alignment,
    knn_accuracy as knn_accuracy,
    linear_probe as linear_probe,
    uniformity as uniformity,
)
from transept.models.albert import (
    AlbertConfig as AlbertConfig,
    AlbertForMaskedLM as AlbertForMaskedLM,
    AlbertForMultipleChoice as AlbertForMultipleChoice,
    AlbertForPreTraining as AlbertForPreTraining,
    AlbertForQuestionAnswering as AlbertForQuestionAnswering,
    AlbertForSequenceClassification as AlbertForSequenceClassification,
    AlbertForTokenClassification as AlbertForTokenClassification,
    AlbertModel as AlbertModel,
)
from transept.models.apertus import (
    ApertusConfig as ApertusConfig,
    ApertusForCausalLM as ApertusForCausalLM,
    ApertusForTokenClassification as ApertusForTokenClassification,
    ApertusModel as ApertusModel,
)
from transept.models.arcee import (
    ArceeConfig as ArceeConfig,
    ArceeForCausalLM as ArceeForCausalLM,
    ArceeForQuestionAnswering as ArceeForQuestionAnswering,
    ArceeForSequenceClassification as ArceeForSequenceClassification,
    ArceeForTokenClassification as ArceeForTokenClassification,
    ArceeModel as ArceeModel,
)
from transept.models.audio_spectrogram_transformer import (
    ASTConfig as ASTConfig,
    ASTForAudioClassification as ASTForAudioClassification,
    ASTModel as ASTModel,
)
from transept.models.autoencoder import (
    AutoencoderConfig as AutoencoderConfig,
    AutoencoderForReconstruction as AutoencoderForReconstruction,
    AutoencoderModel as AutoencoderModel,
)
from transept.models.bamba import (
    BambaConfig as BambaConfig,
    BambaForCausalLM as BambaForCausalLM,
    BambaModel as BambaModel,
)
from transept.models.bart import (
    BartConfig as BartConfig,
    BartForCausalLM as BartForCausalLM,
    BartForConditionalGeneration as BartForConditionalGeneration,
    BartForQuestionAnswering as BartForQuestionAnswering,
    BartForSequenceClassification as BartForSequenceClassification,
    BartModel as BartModel,
)
from transept.models.beit import (
    BeitBackbone as BeitBackbone,
    BeitConfig as BeitConfig,
    BeitForImageClassification as BeitForImageClassification,
    BeitForMaskedImageModeling as BeitForMaskedImageModeling,
    BeitForSemanticSegmentation as BeitForSemanticSegmentation,
    BeitModel as BeitModel,
)
from transept.models.bert import (
    BertConfig as BertConfig,
    BertForMaskedLM as BertForMaskedLM,
    BertForMultipleChoice as BertForMultipleChoice,
    BertForNextSentencePrediction as BertForNextSentencePrediction,
    BertForPreTraining as BertForPreTraining,
    BertForQuestionAnswering as BertForQuestionAnswering,
    BertForSequenceClassification as BertForSequenceClassification,
    BertForTokenClassification as BertForTokenClassification,
    BertLMHeadModel as BertLMHeadModel,
    BertModel as BertModel,
)
from transept.models.bert_generation import (
    BertGenerationConfig as BertGenerationConfig,
    BertGenerationDecoder as BertGenerationDecoder,
    BertGenerationEncoder as BertGenerationEncoder,
)
from transept.models.big_bird import (
    BigBirdConfig as BigBirdConfig,
    BigBirdForCausalLM as BigBirdForCausalLM,
    BigBirdForMaskedLM as BigBirdForMaskedLM,
    BigBirdForMultipleChoice as BigBirdForMultipleChoice,
    BigBirdForPreTraining as BigBirdForPreTraining,
    BigBirdForQuestionAnswering as BigBirdForQuestionAnswering,
    BigBirdForSequenceClassification as BigBirdForSequenceClassification,
    BigBirdForTokenClassification as BigBirdForTokenClassification,
    BigBirdModel as BigBirdModel,
)
from transept.models.bigbird_pegasus import (
    BigBirdPegasusConfig as BigBirdPegasusConfig,
    BigBirdPegasusForCausalLM as BigBirdPegasusForCausalLM,
    BigBirdPegasusForConditionalGeneration as BigBirdPegasusForConditionalGeneration,
    BigBirdPegasusForQuestionAnswering as BigBirdPegasusForQuestionAnswering,
    BigBirdPegasusForSequenceClassification as BigBirdPegasusForSequenceClassification,
    BigBirdPegasusModel as BigBirdPegasusModel,
)
from transept.models.biogpt import (
    BioGptConfig as BioGptConfig,
    BioGptForCausalLM as BioGptForCausalLM,
    BioGptForSequenceClassification as BioGptForSequenceClassification,
    BioGptForTokenClassification as BioGptForTokenClassification,
    BioGptModel as BioGptModel,
)
from transept.models.blenderbot import (
    BlenderbotConfig as BlenderbotConfig,
    BlenderbotForCausalLM as BlenderbotForCausalLM,
    BlenderbotForConditionalGeneration as BlenderbotForConditionalGeneration,
    BlenderbotModel as BlenderbotModel,
)
from transept.models.blenderbot_small import (
    BlenderbotSmallConfig as BlenderbotSmallConfig,
    BlenderbotSmallForCausalLM as BlenderbotSmallForCausalLM,
    BlenderbotSmallForConditionalGeneration as BlenderbotSmallForConditionalGeneration,
    BlenderbotSmallModel as BlenderbotSmallModel,
)
from transept.models.blip import (
    BlipForConditionalGeneration as BlipForConditionalGeneration,
    BlipForImageTextRetrieval as BlipForImageTextRetrieval,
    BlipForQuestionAnswering as BlipForQuestionAnswering,
    BlipModel as BlipModel,
)
from transept.models.blip.networks import (
    BlipConfig as BlipConfig,
    BlipTextConfig as BlipTextConfig,
    BlipTextLMHeadModel as BlipTextLMHeadModel,
    BlipTextModel as BlipTextModel,
    BlipVisionConfig as BlipVisionConfig,
    BlipVisionModel as BlipVisionModel,
)
from transept.models.bloom import (
    BloomConfig as BloomConfig,
    BloomForCausalLM as BloomForCausalLM,
    BloomForQuestionAnswering as BloomForQuestionAnswering,
    BloomForSequenceClassification as BloomForSequenceClassification,
    BloomForTokenClassification as BloomForTokenClassification,
    BloomModel as BloomModel,
)
from transept.models.canine import (
    CanineConfig as CanineConfig,
    CanineForMultipleChoice as CanineForMultipleChoice,
    CanineForQuestionAnswering as CanineForQuestionAnswering,
    CanineForSequenceClassification as CanineForSequenceClassification,
    CanineForTokenClassification as CanineForTokenClassification,
    CanineModel as CanineModel,
)
from transept.models.clip import (
    CLIPConfig as CLIPConfig,
    CLIPForImageClassification as CLIPForImageClassification,
    CLIPModel as CLIPModel,
    CLIPTextConfig as CLIPTextConfig,
    CLIPTextModel as CLIPTextModel,
    CLIPTextModelWithProjection as CLIPTextModelWithProjection,
    CLIPVisionConfig as CLIPVisionConfig,
    CLIPVisionModel as CLIPVisionModel,
    CLIPVisionModelWithProjection as CLIPVisionModelWithProjection,
)
from transept.models.codegen import (
    CodeGenConfig as CodeGenConfig,
    CodeGenForCausalLM as CodeGenForCausalLM,
    CodeGenModel as CodeGenModel,
)
from transept.models.cohere import (
    CohereConfig as CohereConfig,
    CohereForCausalLM as CohereForCausalLM,
    CohereModel as CohereModel,
)
from transept.models.cohere2 import (
    Cohere2Config as Cohere2Config,
    Cohere2ForCausalLM as Cohere2ForCausalLM,
    Cohere2Model as Cohere2Model,
)
from transept.models.convbert import (
    ConvBertConfig as ConvBertConfig,
    ConvBertForMaskedLM as ConvBertForMaskedLM,
    ConvBertForMultipleChoice as ConvBertForMultipleChoice,
    ConvBertForQuestionAnswering as ConvBertForQuestionAnswering,
    ConvBertForSequenceClassification as ConvBertForSequenceClassification,
    ConvBertForTokenClassification as ConvBertForTokenClassification,
    ConvBertModel as ConvBertModel,
)
from transept.models.convnext import (
    ConvNextBackbone as ConvNextBackbone,
    ConvNextConfig as ConvNextConfig,
    ConvNextForImageClassification as ConvNextForImageClassification,
    ConvNextModel as ConvNextModel,
)
from transept.models.ctrl import (
    CTRLConfig as CTRLConfig,
    CTRLForSequenceClassification as CTRLForSequenceClassification,
    CTRLLMHeadModel as CTRLLMHeadModel,
    CTRLModel as CTRLModel,
)
from transept.models.deberta import (
    DebertaConfig as DebertaConfig,
    DebertaForMaskedLM as DebertaForMaskedLM,
    DebertaForQuestionAnswering as DebertaForQuestionAnswering,
    DebertaForSequenceClassification as DebertaForSequenceClassification,
    DebertaForTokenClassification as DebertaForTokenClassification,
    DebertaModel as DebertaModel,
)
from transept.models.deberta_v2 import (
    DebertaV2Config as DebertaV2Config,
    DebertaV2ForMaskedLM as DebertaV2ForMaskedLM,
    DebertaV2ForMultipleChoice as DebertaV2ForMultipleChoice,
    DebertaV2ForQuestionAnswering as DebertaV2ForQuestionAnswering,
    DebertaV2ForSequenceClassification as DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification as DebertaV2ForTokenClassification,
    DebertaV2Model as DebertaV2Model,
)
from transept.models.deepseek_v2 import (
    DeepseekV2Config as DeepseekV2Config,
    DeepseekV2ForCausalLM as DeepseekV2ForCausalLM,
    DeepseekV2ForSequenceClassification as DeepseekV2ForSequenceClassification,
    DeepseekV2Model as DeepseekV2Model,
)
from transept.models.deepseek_v3 import (
    DeepseekV3Config as DeepseekV3Config,
    DeepseekV3ForCausalLM as DeepseekV3ForCausalLM,
    DeepseekV3ForSequenceClassification as DeepseekV3ForSequenceClassification,
    DeepseekV3ForTokenClassification as DeepseekV3ForTokenClassification,
    DeepseekV3Model as DeepseekV3Model,
)
from transept.models.deit import (
    DeiTBackbone as DeiTBackbone,
    DeiTConfig as DeiTConfig,
    DeiTForImageClassification as DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher as DeiTForImageClassificationWithTeacher,
    DeiTForMaskedImageModeling as DeiTForMaskedImageModeling,
    DeiTModel as DeiTModel,
)
from transept.models.depth_anything import (
    DepthAnythingConfig as DepthAnythingConfig,
    DepthAnythingForDepthEstimation as DepthAnythingForDepthEstimation,
)
from transept.models.detr import (
    DetrConfig as DetrConfig,
    DetrForObjectDetection as DetrForObjectDetection,
    DetrForSegmentation as DetrForSegmentation,
    DetrModel as DetrModel,
)
from transept.models.dinov2 import (
    Dinov2Backbone as Dinov2Backbone,
    Dinov2Config as Dinov2Config,
    Dinov2ForImageClassification as Dinov2ForImageClassification,
    Dinov2Model as Dinov2Model,
)
from transept.models.dinov2_with_registers import (
    Dinov2WithRegistersBackbone as Dinov2WithRegistersBackbone,
    Dinov2WithRegistersConfig as Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification as Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel as Dinov2WithRegistersModel,
)
from transept.models.distilbert import (
    DistilBertConfig as DistilBertConfig,
    DistilBertForMaskedLM as DistilBertForMaskedLM,
    DistilBertForMultipleChoice as DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering as DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification as DistilBertForSequenceClassification,
    DistilBertForTokenClassification as DistilBertForTokenClassification,
    DistilBertModel as DistilBertModel,
)
from transept.models.dots1 import (
    Dots1Config as Dots1Config,
    Dots1ForCausalLM as Dots1ForCausalLM,
    Dots1Model as Dots1Model,
)
from transept.models.dpr import (
    DPRConfig as DPRConfig,
    DPRContextEncoder as DPRContextEncoder,
    DPRQuestionEncoder as DPRQuestionEncoder,
    DPRReader as DPRReader,
)
from transept.models.dpt import (
    DPTConfig as DPTConfig,
    DPTForDepthEstimation as DPTForDepthEstimation,
    DPTForSemanticSegmentation as DPTForSemanticSegmentation,
    DPTModel as DPTModel,
)
from transept.models.electra import (
    ElectraConfig as ElectraConfig,
    ElectraForCausalLM as ElectraForCausalLM,
    ElectraForMaskedLM as ElectraForMaskedLM,
    ElectraForMultipleChoice as ElectraForMultipleChoice,
    ElectraForPreTraining as ElectraForPreTraining,
    ElectraForQuestionAnswering as ElectraForQuestionAnswering,
    ElectraForSequenceClassification as ElectraForSequenceClassification,
    ElectraForTokenClassification as ElectraForTokenClassification,
    ElectraModel as ElectraModel,
)
from transept.models.encoder_decoder import (
    EncoderDecoderConfig as EncoderDecoderConfig,
    EncoderDecoderModel as EncoderDecoderModel,
)
from transept.models.ernie import (
    ErnieConfig as ErnieConfig,
    ErnieForCausalLM as ErnieForCausalLM,
    ErnieForMaskedLM as ErnieForMaskedLM,
    ErnieForMultipleChoice as ErnieForMultipleChoice,
    ErnieForNextSentencePrediction as ErnieForNextSentencePrediction,
    ErnieForPreTraining as ErnieForPreTraining,
    ErnieForQuestionAnswering as ErnieForQuestionAnswering,
    ErnieForSequenceClassification as ErnieForSequenceClassification,
    ErnieForTokenClassification as ErnieForTokenClassification,
    ErnieModel as ErnieModel,
)
from transept.models.ernie4_5 import (
    Ernie4_5Config as Ernie4_5Config,
    Ernie4_5ForCausalLM as Ernie4_5ForCausalLM,
    Ernie4_5Model as Ernie4_5Model,
)
from transept.models.ernie4_5_moe import (
    Ernie4_5_MoeConfig as Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM as Ernie4_5_MoeForCausalLM,
    Ernie4_5_MoeModel as Ernie4_5_MoeModel,
)
from transept.models.esm import (
    EsmConfig as EsmConfig,
    EsmForMaskedLM as EsmForMaskedLM,
    EsmForSequenceClassification as EsmForSequenceClassification,
    EsmForTokenClassification as EsmForTokenClassification,
    EsmModel as EsmModel,
)
from transept.models.eurobert import (
    EuroBertConfig as EuroBertConfig,
    EuroBertForMaskedLM as EuroBertForMaskedLM,
    EuroBertForSequenceClassification as EuroBertForSequenceClassification,
    EuroBertForTokenClassification as EuroBertForTokenClassification,
    EuroBertModel as EuroBertModel,
)
from transept.models.exaone4 import (
    Exaone4Config as Exaone4Config,
    Exaone4ForCausalLM as Exaone4ForCausalLM,
    Exaone4ForQuestionAnswering as Exaone4ForQuestionAnswering,
    Exaone4ForSequenceClassification as Exaone4ForSequenceClassification,
    Exaone4ForTokenClassification as Exaone4ForTokenClassification,
    Exaone4Model as Exaone4Model,
)
from transept.models.falcon import (
    FalconConfig as FalconConfig,
    FalconForCausalLM as FalconForCausalLM,
    FalconForQuestionAnswering as FalconForQuestionAnswering,
    FalconForSequenceClassification as FalconForSequenceClassification,
    FalconForTokenClassification as FalconForTokenClassification,
    FalconModel as FalconModel,
)
from transept.models.falcon_h1 import (
    FalconH1Config as FalconH1Config,
    FalconH1ForCausalLM as FalconH1ForCausalLM,
    FalconH1Model as FalconH1Model,
)
from transept.models.falcon_mamba import (
    FalconMambaConfig as FalconMambaConfig,
    FalconMambaForCausalLM as FalconMambaForCausalLM,
    FalconMambaModel as FalconMambaModel,
)
from transept.models.flaubert import (
    FlaubertConfig as FlaubertConfig,
    FlaubertForMultipleChoice as FlaubertForMultipleChoice,
    FlaubertForQuestionAnswering as FlaubertForQuestionAnswering,
    FlaubertForQuestionAnsweringSimple as FlaubertForQuestionAnsweringSimple,
    FlaubertForSequenceClassification as FlaubertForSequenceClassification,
    FlaubertForTokenClassification as FlaubertForTokenClassification,
    FlaubertModel as FlaubertModel,
    FlaubertWithLMHeadModel as FlaubertWithLMHeadModel,
)
from transept.models.flex_olmo import (
    FlexOlmoConfig as FlexOlmoConfig,
    FlexOlmoForCausalLM as FlexOlmoForCausalLM,
    FlexOlmoModel as FlexOlmoModel,
)
from transept.models.fnet import (
    FNetConfig as FNetConfig,
    FNetForMaskedLM as FNetForMaskedLM,
    FNetForMultipleChoice as FNetForMultipleChoice,
    FNetForNextSentencePrediction as FNetForNextSentencePrediction,
    FNetForPreTraining as FNetForPreTraining,
    FNetForQuestionAnswering as FNetForQuestionAnswering,
    FNetForSequenceClassification as FNetForSequenceClassification,
    FNetForTokenClassification as FNetForTokenClassification,
    FNetModel as FNetModel,
)
from transept.models.fsmt import (
    FSMTConfig as FSMTConfig,
    FSMTForConditionalGeneration as FSMTForConditionalGeneration,
    FSMTModel as FSMTModel,
)
from transept.models.funnel import (
    FunnelBaseModel as FunnelBaseModel,
    FunnelConfig as FunnelConfig,
    FunnelForMaskedLM as FunnelForMaskedLM,
    FunnelForMultipleChoice as FunnelForMultipleChoice,
    FunnelForPreTraining as FunnelForPreTraining,
    FunnelForQuestionAnswering as FunnelForQuestionAnswering,
    FunnelForSequenceClassification as FunnelForSequenceClassification,
    FunnelForTokenClassification as FunnelForTokenClassification,
    FunnelModel as FunnelModel,
)
from transept.models.gemma import (
    GemmaConfig as GemmaConfig,
    GemmaForCausalLM as GemmaForCausalLM,
    GemmaForSequenceClassification as GemmaForSequenceClassification,
    GemmaForTokenClassification as GemmaForTokenClassification,
    GemmaModel as GemmaModel,
)
from transept.models.gemma2 import (
    Gemma2Config as Gemma2Config,
    Gemma2ForCausalLM as Gemma2ForCausalLM,
    Gemma2ForSequenceClassification as Gemma2ForSequenceClassification,
    Gemma2ForTokenClassification as Gemma2ForTokenClassification,
    Gemma2Model as Gemma2Model,
)
from transept.models.gemma3_text import (
    Gemma3ForCausalLM as Gemma3ForCausalLM,
    Gemma3TextConfig as Gemma3TextConfig,
    Gemma3TextForSequenceClassification as Gemma3TextForSequenceClassification,
    Gemma3TextModel as Gemma3TextModel,
)
from transept.models.gemma4_text import (
    Gemma4ForCausalLM as Gemma4ForCausalLM,
    Gemma4TextModel as Gemma4TextModel,
)
from transept.models.gemma4_text.config import Gemma4TextConfig as Gemma4TextConfig
from transept.models.glm import (
    GlmConfig as GlmConfig,
    GlmForCausalLM as GlmForCausalLM,
    GlmForSequenceClassification as GlmForSequenceClassification,
    GlmForTokenClassification as GlmForTokenClassification,
    GlmModel as GlmModel,
)
from transept.models.glm4 import (
    Glm4Config as Glm4Config,
    Glm4ForCausalLM as Glm4ForCausalLM,
    Glm4ForSequenceClassification as Glm4ForSequenceClassification,
    Glm4ForTokenClassification as Glm4ForTokenClassification,
    Glm4Model as Glm4Model,
)
from transept.models.glm4_moe import (
    Glm4MoeConfig as Glm4MoeConfig,
    Glm4MoeForCausalLM as Glm4MoeForCausalLM,
    Glm4MoeModel as Glm4MoeModel,
)
from transept.models.gpt2 import (
    GPT2Config as GPT2Config,
    GPT2DoubleHeadsModel as GPT2DoubleHeadsModel,
    GPT2ForQuestionAnswering as GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification as GPT2ForSequenceClassification,
    GPT2ForTokenClassification as GPT2ForTokenClassification,
    GPT2LMHeadModel as GPT2LMHeadModel,
    GPT2Model as GPT2Model,
)
from transept.models.gpt_bigcode import (
    GPTBigCodeConfig as GPTBigCodeConfig,
    GPTBigCodeForCausalLM as GPTBigCodeForCausalLM,
    GPTBigCodeForSequenceClassification as GPTBigCodeForSequenceClassification,
    GPTBigCodeForTokenClassification as GPTBigCodeForTokenClassification,
    GPTBigCodeModel as GPTBigCodeModel,
)
from transept.models.gpt_neo import (
    GPTNeoConfig as GPTNeoConfig,
    GPTNeoForCausalLM as GPTNeoForCausalLM,
    GPTNeoForQuestionAnswering as GPTNeoForQuestionAnswering,
    GPTNeoForSequenceClassification as GPTNeoForSequenceClassification,
    GPTNeoForTokenClassification as GPTNeoForTokenClassification,
    GPTNeoModel as GPTNeoModel,
)
from transept.models.gpt_neox import (
    GPTNeoXConfig as GPTNeoXConfig,
    GPTNeoXForCausalLM as GPTNeoXForCausalLM,
    GPTNeoXForQuestionAnswering as GPTNeoXForQuestionAnswering,
    GPTNeoXForSequenceClassification as GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification as GPTNeoXForTokenClassification,
    GPTNeoXModel as GPTNeoXModel,
)
from transept.models.gpt_oss import (
    GptOssConfig as GptOssConfig,
    GptOssForCausalLM as GptOssForCausalLM,
    GptOssForSequenceClassification as GptOssForSequenceClassification,
    GptOssForTokenClassification as GptOssForTokenClassification,
    GptOssModel as GptOssModel,
)
from transept.models.gptj import (
    GPTJConfig as GPTJConfig,
    GPTJForCausalLM as GPTJForCausalLM,
    GPTJForQuestionAnswering as GPTJForQuestionAnswering,
    GPTJForSequenceClassification as GPTJForSequenceClassification,
    GPTJModel as GPTJModel,
)
from transept.models.granite import (
    GraniteConfig as GraniteConfig,
    GraniteForCausalLM as GraniteForCausalLM,
    GraniteModel as GraniteModel,
)
from transept.models.granitemoe import (
    GraniteMoeConfig as GraniteMoeConfig,
    GraniteMoeForCausalLM as GraniteMoeForCausalLM,
    GraniteMoeModel as GraniteMoeModel,
)
from transept.models.granitemoehybrid import (
    GraniteMoeHybridConfig as GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM as GraniteMoeHybridForCausalLM,
    GraniteMoeHybridModel as GraniteMoeHybridModel,
)
from transept.models.granitemoeshared import (
    GraniteMoeSharedConfig as GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM as GraniteMoeSharedForCausalLM,
    GraniteMoeSharedModel as GraniteMoeSharedModel,
)
from transept.models.helium import (
    HeliumConfig as HeliumConfig,
    HeliumForCausalLM as HeliumForCausalLM,
    HeliumForSequenceClassification as HeliumForSequenceClassification,
    HeliumForTokenClassification as HeliumForTokenClassification,
    HeliumModel as HeliumModel,
)
from transept.models.hubert import (
    HubertConfig as HubertConfig,
    HubertForCTC as HubertForCTC,
    HubertForSequenceClassification as HubertForSequenceClassification,
    HubertModel as HubertModel,
)
from transept.models.hunyuan_v1_dense import (
    HunYuanDenseV1Config as HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM as HunYuanDenseV1ForCausalLM,
    HunYuanDenseV1ForSequenceClassification as HunYuanDenseV1ForSequenceClassification,
    HunYuanDenseV1Model as HunYuanDenseV1Model,
)
from transept.models.hunyuan_v1_moe import (
    HunYuanMoEV1Config as HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM as HunYuanMoEV1ForCausalLM,
    HunYuanMoEV1ForSequenceClassification as HunYuanMoEV1ForSequenceClassification,
    HunYuanMoEV1Model as HunYuanMoEV1Model,
)
from transept.models.jamba import (
    JambaConfig as JambaConfig,
    JambaForCausalLM as JambaForCausalLM,
    JambaForSequenceClassification as JambaForSequenceClassification,
    JambaModel as JambaModel,
)
from transept.models.jina_embeddings_v3 import (
    JinaEmbeddingsV3Config as JinaEmbeddingsV3Config,
    JinaEmbeddingsV3ForMaskedLM as JinaEmbeddingsV3ForMaskedLM,
    JinaEmbeddingsV3ForQuestionAnswering as JinaEmbeddingsV3ForQuestionAnswering,
    JinaEmbeddingsV3ForSequenceClassification as JinaEmbeddingsV3ForSequenceClassification,
    JinaEmbeddingsV3ForTokenClassification as JinaEmbeddingsV3ForTokenClassification,
    JinaEmbeddingsV3Model as JinaEmbeddingsV3Model,
)
from transept.models.kimi_linear import (
    KimiLinearConfig as KimiLinearConfig,
    KimiLinearForCausalLM as KimiLinearForCausalLM,
    KimiLinearModel as KimiLinearModel,
)
from transept.models.layoutlm import (
    LayoutLMConfig as LayoutLMConfig,
    LayoutLMForMaskedLM as LayoutLMForMaskedLM,
    LayoutLMForQuestionAnswering as LayoutLMForQuestionAnswering,
    LayoutLMForSequenceClassification as LayoutLMForSequenceClassification,
    LayoutLMForTokenClassification as LayoutLMForTokenClassification,
    LayoutLMModel as LayoutLMModel,
)
from transept.models.layoutlmv3 import (
    LayoutLMv3Config as LayoutLMv3Config,
    LayoutLMv3ForQuestionAnswering as LayoutLMv3ForQuestionAnswering,
    LayoutLMv3ForSequenceClassification as LayoutLMv3ForSequenceClassification,
    LayoutLMv3ForTokenClassification as LayoutLMv3ForTokenClassification,
    LayoutLMv3Model as LayoutLMv3Model,
)
from transept.models.led import (
    LEDConfig as LEDConfig,
    LEDForConditionalGeneration as LEDForConditionalGeneration,
    LEDForQuestionAnswering as LEDForQuestionAnswering,
    LEDModel as LEDModel,
)
from transept.models.lfm2 import (
    Lfm2Config as Lfm2Config,
    Lfm2ForCausalLM as Lfm2ForCausalLM,
    Lfm2Model as Lfm2Model,
)
from transept.models.lfm2_moe import (
    Lfm2MoeConfig as Lfm2MoeConfig,
    Lfm2MoeForCausalLM as Lfm2MoeForCausalLM,
    Lfm2MoeModel as Lfm2MoeModel,
)
from transept.models.llama import (
    LlamaConfig as LlamaConfig,
    LlamaForCausalLM as LlamaForCausalLM,
    LlamaForQuestionAnswering as LlamaForQuestionAnswering,
    LlamaForSequenceClassification as LlamaForSequenceClassification,
    LlamaForTokenClassification as LlamaForTokenClassification,
    LlamaModel as LlamaModel,
)
from transept.models.llama4_text import (
    Llama4ForCausalLM as Llama4ForCausalLM,
    Llama4TextConfig as Llama4TextConfig,
    Llama4TextModel as Llama4TextModel,
)
from transept.models.llava import (
    LlavaConfig as LlavaConfig,
    LlavaForConditionalGeneration as LlavaForConditionalGeneration,
    LlavaModel as LlavaModel,
)
from transept.models.longformer import (
    LongformerConfig as LongformerConfig,
    LongformerForMaskedLM as LongformerForMaskedLM,
    LongformerForMultipleChoice as LongformerForMultipleChoice,
    LongformerForQuestionAnswering as LongformerForQuestionAnswering,
    LongformerForSequenceClassification as LongformerForSequenceClassification,
    LongformerForTokenClassification as LongformerForTokenClassification,
    LongformerModel as LongformerModel,
)
from transept.models.longt5 import (
    LongT5Config as LongT5Config,
    LongT5EncoderModel as LongT5EncoderModel,
    LongT5ForConditionalGeneration as LongT5ForConditionalGeneration,
    LongT5Model as LongT5Model,
)
from transept.models.luke import (
    LukeConfig as LukeConfig,
    LukeForEntityClassification as LukeForEntityClassification,
    LukeForEntityPairClassification as LukeForEntityPairClassification,
    LukeForEntitySpanClassification as LukeForEntitySpanClassification,
    LukeForMaskedLM as LukeForMaskedLM,
    LukeForMultipleChoice as LukeForMultipleChoice,
    LukeForQuestionAnswering as LukeForQuestionAnswering,
    LukeForSequenceClassification as LukeForSequenceClassification,
    LukeForTokenClassification as LukeForTokenClassification,
    LukeModel as LukeModel,
)
from transept.models.m2m_100 import (
    M2M100Config as M2M100Config,
    M2M100ForConditionalGeneration as M2M100ForConditionalGeneration,
    M2M100Model as M2M100Model,
)
from transept.models.mamba import (
    MambaConfig as MambaConfig,
    MambaForCausalLM as MambaForCausalLM,
    MambaModel as MambaModel,
)
from transept.models.mamba2 import (
    Mamba2Config as Mamba2Config,
    Mamba2ForCausalLM as Mamba2ForCausalLM,
    Mamba2Model as Mamba2Model,
)
from transept.models.marian import (
    MarianConfig as MarianConfig,
    MarianForCausalLM as MarianForCausalLM,
    MarianMTModel as MarianMTModel,
    MarianModel as MarianModel,
)
from transept.models.mbart import (
    MBartConfig as MBartConfig,
    MBartForCausalLM as MBartForCausalLM,
    MBartForConditionalGeneration as MBartForConditionalGeneration,
    MBartForQuestionAnswering as MBartForQuestionAnswering,
    MBartForSequenceClassification as MBartForSequenceClassification,
    MBartModel as MBartModel,
)
from transept.models.megatron_bert import (
    MegatronBertConfig as MegatronBertConfig,
    MegatronBertForCausalLM as MegatronBertForCausalLM,
    MegatronBertForMaskedLM as MegatronBertForMaskedLM,
    MegatronBertForMultipleChoice as MegatronBertForMultipleChoice,
    MegatronBertForNextSentencePrediction as MegatronBertForNextSentencePrediction,
    MegatronBertForPreTraining as MegatronBertForPreTraining,
    MegatronBertForQuestionAnswering as MegatronBertForQuestionAnswering,
    MegatronBertForSequenceClassification as MegatronBertForSequenceClassification,
    MegatronBertForTokenClassification as MegatronBertForTokenClassification,
    MegatronBertModel as MegatronBertModel,
)
from transept.models.minicpm3 import (
    MiniCPM3Config as MiniCPM3Config,
    MiniCPM3ForCausalLM as MiniCPM3ForCausalLM,
    MiniCPM3ForSequenceClassification as MiniCPM3ForSequenceClassification,
    MiniCPM3Model as MiniCPM3Model,
)
from transept.models.minimax_m2 import (
    MiniMaxM2Config as MiniMaxM2Config,
    MiniMaxM2ForCausalLM as MiniMaxM2ForCausalLM,
    MiniMaxM2Model as MiniMaxM2Model,
)
from transept.models.ministral import (
    MinistralConfig as MinistralConfig,
    MinistralForCausalLM as MinistralForCausalLM,
    MinistralForQuestionAnswering as MinistralForQuestionAnswering,
    MinistralForSequenceClassification as MinistralForSequenceClassification,
    MinistralForTokenClassification as MinistralForTokenClassification,
    MinistralModel as MinistralModel,
)
from transept.models.ministral3 import (
    Ministral3Config as Ministral3Config,
    Ministral3ForCausalLM as Ministral3ForCausalLM,
    Ministral3ForQuestionAnswering as Ministral3ForQuestionAnswering,
    Ministral3ForSequenceClassification as Ministral3ForSequenceClassification,
    Ministral3ForTokenClassification as Ministral3ForTokenClassification,
    Ministral3Model as Ministral3Model,
)
from transept.models.mistral import (
    MistralConfig as MistralConfig,
    MistralForCausalLM as MistralForCausalLM,
    MistralForQuestionAnswering as MistralForQuestionAnswering,
    MistralForSequenceClassification as MistralForSequenceClassification,
    MistralForTokenClassification as MistralForTokenClassification,
    MistralModel as MistralModel,
)
from transept.models.mixtral import (
    MixtralConfig as MixtralConfig,
    MixtralForCausalLM as MixtralForCausalLM,
    MixtralForQuestionAnswering as MixtralForQuestionAnswering,
    MixtralForSequenceClassification as MixtralForSequenceClassification,
    MixtralForTokenClassification as MixtralForTokenClassification,
    MixtralModel as MixtralModel,
)
from transept.models.mobilebert import (
    MobileBertConfig as MobileBertConfig,
    MobileBertForMaskedLM as MobileBertForMaskedLM,
    MobileBertForMultipleChoice as MobileBertForMultipleChoice,
    MobileBertForNextSentencePrediction as MobileBertForNextSentencePrediction,
    MobileBertForPreTraining as MobileBertForPreTraining,
    MobileBertForQuestionAnswering as MobileBertForQuestionAnswering,
    MobileBertForSequenceClassification as MobileBertForSequenceClassification,
    MobileBertForTokenClassification as MobileBertForTokenClassification,
    MobileBertModel as MobileBertModel,
)
from transept.models.modernbert import (
    ModernBertConfig as ModernBertConfig,
    ModernBertForMaskedLM as ModernBertForMaskedLM,
    ModernBertForMultipleChoice as ModernBertForMultipleChoice,
    ModernBertForQuestionAnswering as ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification as ModernBertForSequenceClassification,
    ModernBertForTokenClassification as ModernBertForTokenClassification,
    ModernBertModel as ModernBertModel,
)
from transept.models.modernbert_decoder import (
    ModernBertDecoderConfig as ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM as ModernBertDecoderForCausalLM,
    ModernBertDecoderForSequenceClassification as ModernBertDecoderForSequenceClassification,
    ModernBertDecoderModel as ModernBertDecoderModel,
)
from transept.models.mpnet import (
    MPNetConfig as MPNetConfig,
    MPNetForMaskedLM as MPNetForMaskedLM,
    MPNetForMultipleChoice as MPNetForMultipleChoice,
    MPNetForQuestionAnswering as MPNetForQuestionAnswering,
    MPNetForSequenceClassification as MPNetForSequenceClassification,
    MPNetForTokenClassification as MPNetForTokenClassification,
    MPNetModel as MPNetModel,
)
from transept.models.mpt import (
    MptConfig as MptConfig,
    MptForCausalLM as MptForCausalLM,
    MptForQuestionAnswering as MptForQuestionAnswering,
    MptForSequenceClassification as MptForSequenceClassification,
    MptForTokenClassification as MptForTokenClassification,
    MptModel as MptModel,
)
from transept.models.mvp import (
    MvpConfig as MvpConfig,
    MvpForCausalLM as MvpForCausalLM,
    MvpForConditionalGeneration as MvpForConditionalGeneration,
    MvpForQuestionAnswering as MvpForQuestionAnswering,
    MvpForSequenceClassification as MvpForSequenceClassification,
    MvpModel as MvpModel,
)
from transept.models.nemotron import (
    NemotronConfig as NemotronConfig,
    NemotronForCausalLM as NemotronForCausalLM,
    NemotronForQuestionAnswering as NemotronForQuestionAnswering,
    NemotronForSequenceClassification as NemotronForSequenceClassification,
    NemotronForTokenClassification as NemotronForTokenClassification,
    NemotronModel as NemotronModel,
)
from transept.models.nemotron_h import (
    NemotronHConfig as NemotronHConfig,
    NemotronHForCausalLM as NemotronHForCausalLM,
    NemotronHModel as NemotronHModel,
)
from transept.models.nllb_moe import (
    NllbMoeConfig as NllbMoeConfig,
    NllbMoeForConditionalGeneration as NllbMoeForConditionalGeneration,
    NllbMoeModel as NllbMoeModel,
)
from transept.models.nomic_bert import (
    NomicBertConfig as NomicBertConfig,
    NomicBertForMaskedLM as NomicBertForMaskedLM,
    NomicBertForSequenceClassification as NomicBertForSequenceClassification,
    NomicBertForTokenClassification as NomicBertForTokenClassification,
    NomicBertModel as NomicBertModel,
)
from transept.models.nystromformer import (
    NystromformerConfig as NystromformerConfig,
    NystromformerForMaskedLM as NystromformerForMaskedLM,
    NystromformerForMultipleChoice as NystromformerForMultipleChoice,
    NystromformerForQuestionAnswering as NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification as NystromformerForSequenceClassification,
    NystromformerForTokenClassification as NystromformerForTokenClassification,
    NystromformerModel as NystromformerModel,
)
from transept.models.olmo import (
    OlmoConfig as OlmoConfig,
    OlmoForCausalLM as OlmoForCausalLM,
    OlmoForSequenceClassification as OlmoForSequenceClassification,
    OlmoModel as OlmoModel,
)
from transept.models.olmo2 import (
    Olmo2Config as Olmo2Config,
    Olmo2ForCausalLM as Olmo2ForCausalLM,
    Olmo2ForSequenceClassification as Olmo2ForSequenceClassification,
    Olmo2Model as Olmo2Model,
)
from transept.models.olmo3 import (
    Olmo3Config as Olmo3Config,
    Olmo3ForCausalLM as Olmo3ForCausalLM,
    Olmo3ForSequenceClassification as Olmo3ForSequenceClassification,
    Olmo3Model as Olmo3Model,
)
from transept.models.olmoe import (
    OlmoeConfig as OlmoeConfig,
    OlmoeForCausalLM as OlmoeForCausalLM,
    OlmoeModel as OlmoeModel,
)
from transept.models.openai_gpt import (
    OpenAIGPTConfig as OpenAIGPTConfig,
    OpenAIGPTDoubleHeadsModel as OpenAIGPTDoubleHeadsModel,
    OpenAIGPTForSequenceClassification as OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel as OpenAIGPTLMHeadModel,
    OpenAIGPTModel as OpenAIGPTModel,
)
from transept.models.opt import (
    OPTConfig as OPTConfig,
    OPTForCausalLM as OPTForCausalLM,
    OPTForQuestionAnswering as OPTForQuestionAnswering,
    OPTForSequenceClassification as OPTForSequenceClassification,
    OPTModel as OPTModel,
)
from transept.models.pegasus import (
    PegasusConfig as PegasusConfig,
    PegasusForCausalLM as PegasusForCausalLM,
    PegasusForConditionalGeneration as PegasusForConditionalGeneration,
    PegasusModel as PegasusModel,
)
from transept.models.pegasus_x import (
    PegasusXConfig as PegasusXConfig,
    PegasusXForConditionalGeneration as PegasusXForConditionalGeneration,
    PegasusXModel as PegasusXModel,
)
from transept.models.persimmon import (
    PersimmonConfig as PersimmonConfig,
    PersimmonForCausalLM as PersimmonForCausalLM,
    PersimmonForSequenceClassification as PersimmonForSequenceClassification,
    PersimmonForTokenClassification as PersimmonForTokenClassification,
    PersimmonModel as PersimmonModel,
)
from transept.models.phi import (
    PhiConfig as PhiConfig,
    PhiForCausalLM as PhiForCausalLM,
    PhiForSequenceClassification as PhiForSequenceClassification,
    PhiForTokenClassification as PhiForTokenClassification,
    PhiModel as PhiModel,
)
from transept.models.phi3 import (
    Phi3Config as Phi3Config,
    Phi3ForCausalLM as Phi3ForCausalLM,
    Phi3ForSequenceClassification as Phi3ForSequenceClassification,
    Phi3ForTokenClassification as Phi3ForTokenClassification,
    Phi3Model as Phi3Model,
)
from transept.models.phimoe import (
    PhimoeConfig as PhimoeConfig,
    PhimoeForCausalLM as PhimoeForCausalLM,
    PhimoeForSequenceClassification as PhimoeForSequenceClassification,
    PhimoeModel as PhimoeModel,
)
from transept.models.plbart import (
    PLBartConfig as PLBartConfig,
    PLBartForCausalLM as PLBartForCausalLM,
    PLBartForConditionalGeneration as PLBartForConditionalGeneration,
    PLBartForSequenceClassification as PLBartForSequenceClassification,
    PLBartModel as PLBartModel,
)
from transept.models.prophetnet import (
    ProphetNetConfig as ProphetNetConfig,
    ProphetNetDecoder as ProphetNetDecoder,
    ProphetNetEncoder as ProphetNetEncoder,
    ProphetNetForCausalLM as ProphetNetForCausalLM,
    ProphetNetForConditionalGeneration as ProphetNetForConditionalGeneration,
    ProphetNetModel as ProphetNetModel,
)
from transept.models.qwen2 import (
    Qwen2Config as Qwen2Config,
    Qwen2ForCausalLM as Qwen2ForCausalLM,
    Qwen2ForQuestionAnswering as Qwen2ForQuestionAnswering,
    Qwen2ForSequenceClassification as Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification as Qwen2ForTokenClassification,
    Qwen2Model as Qwen2Model,
)
from transept.models.qwen2_5_vl import (
    Qwen2_5_VLConfig as Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration as Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel as Qwen2_5_VLModel,
    Qwen2_5_VLTextConfig as Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel as Qwen2_5_VLTextModel,
    Qwen2_5_VLVisionConfig as Qwen2_5_VLVisionConfig,
    Qwen2_5_VisionTransformerPretrainedModel as Qwen2_5_VisionTransformerPretrainedModel,
)
from transept.models.qwen2_moe import (
    Qwen2MoeConfig as Qwen2MoeConfig,
    Qwen2MoeForCausalLM as Qwen2MoeForCausalLM,
    Qwen2MoeForQuestionAnswering as Qwen2MoeForQuestionAnswering,
    Qwen2MoeForSequenceClassification as Qwen2MoeForSequenceClassification,
    Qwen2MoeForTokenClassification as Qwen2MoeForTokenClassification,
    Qwen2MoeModel as Qwen2MoeModel,
)
from transept.models.qwen2_vl import (
    Qwen2VLConfig as Qwen2VLConfig,
    Qwen2VLForConditionalGeneration as Qwen2VLForConditionalGeneration,
    Qwen2VLModel as Qwen2VLModel,
    Qwen2VLTextConfig as Qwen2VLTextConfig,
    Qwen2VLTextModel as Qwen2VLTextModel,
    Qwen2VLVisionConfig as Qwen2VLVisionConfig,
    Qwen2VisionTransformerPretrainedModel as Qwen2VisionTransformerPretrainedModel,
)
from transept.models.qwen3 import (
    Qwen3Config as Qwen3Config,
    Qwen3ForCausalLM as Qwen3ForCausalLM,
    Qwen3ForQuestionAnswering as Qwen3ForQuestionAnswering,
    Qwen3ForSequenceClassification as Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification as Qwen3ForTokenClassification,
    Qwen3Model as Qwen3Model,
)
from transept.models.qwen3_5_moe_text import (
    Qwen3_5MoeForCausalLM as Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig as Qwen3_5MoeTextConfig,
    Qwen3_5MoeTextModel as Qwen3_5MoeTextModel,
)
from transept.models.qwen3_5_text import (
    Qwen3_5ForCausalLM as Qwen3_5ForCausalLM,
    Qwen3_5TextConfig as Qwen3_5TextConfig,
    Qwen3_5TextForSequenceClassification as Qwen3_5TextForSequenceClassification,
    Qwen3_5TextModel as Qwen3_5TextModel,
)
from transept.models.qwen3_moe import (
    Qwen3MoeConfig as Qwen3MoeConfig,
    Qwen3MoeForCausalLM as Qwen3MoeForCausalLM,
    Qwen3MoeForQuestionAnswering as Qwen3MoeForQuestionAnswering,
    Qwen3MoeForSequenceClassification as Qwen3MoeForSequenceClassification,
    Qwen3MoeForTokenClassification as Qwen3MoeForTokenClassification,
    Qwen3MoeModel as Qwen3MoeModel,
)
from transept.models.qwen3_next import (
    Qwen3NextConfig as Qwen3NextConfig,
    Qwen3NextForCausalLM as Qwen3NextForCausalLM,
    Qwen3NextForQuestionAnswering as Qwen3NextForQuestionAnswering,
    Qwen3NextForSequenceClassification as Qwen3NextForSequenceClassification,
    Qwen3NextForTokenClassification as Qwen3NextForTokenClassification,
    Qwen3NextModel as Qwen3NextModel,
)
from transept.models.recurrent_gemma import (
    RecurrentGemmaConfig as RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM as RecurrentGemmaForCausalLM,
    RecurrentGemmaModel as RecurrentGemmaModel,
)
from transept.models.reformer import (
    ReformerConfig as ReformerConfig,
    ReformerForMaskedLM as ReformerForMaskedLM,
    ReformerForQuestionAnswering as ReformerForQuestionAnswering,
    ReformerForSequenceClassification as ReformerForSequenceClassification,
    ReformerModel as ReformerModel,
    ReformerModelWithLMHead as ReformerModelWithLMHead,
)
from transept.models.rembert import (
    RemBertConfig as RemBertConfig,
    RemBertForCausalLM as RemBertForCausalLM,
    RemBertForMaskedLM as RemBertForMaskedLM,
    RemBertForMultipleChoice as RemBertForMultipleChoice,
    RemBertForQuestionAnswering as RemBertForQuestionAnswering,
    RemBertForSequenceClassification as RemBertForSequenceClassification,
    RemBertForTokenClassification as RemBertForTokenClassification,
    RemBertModel as RemBertModel,
)
from transept.models.resnet import (
    ResNetBackbone as ResNetBackbone,
    ResNetConfig as ResNetConfig,
    ResNetForImageClassification as ResNetForImageClassification,
    ResNetModel as ResNetModel,
)
from transept.models.rnn import (
    RNNConfig as RNNConfig,
    RNNForCausalLM as RNNForCausalLM,
    RNNForSequenceClassification as RNNForSequenceClassification,
    RNNForTokenClassification as RNNForTokenClassification,
    RNNModel as RNNModel,
)
from transept.models.roberta import (
    RobertaConfig as RobertaConfig,
    RobertaConfig as CamembertConfig,
    RobertaConfig as Data2VecTextConfig,
    RobertaConfig as XLMRobertaConfig,
    RobertaForCausalLM as RobertaForCausalLM,
    RobertaForCausalLM as CamembertForCausalLM,
    RobertaForCausalLM as Data2VecTextForCausalLM,
    RobertaForCausalLM as XLMRobertaForCausalLM,
    RobertaForMaskedLM as RobertaForMaskedLM,
    RobertaForMaskedLM as CamembertForMaskedLM,
    RobertaForMaskedLM as Data2VecTextForMaskedLM,
    RobertaForMaskedLM as XLMRobertaForMaskedLM,
    RobertaForMultipleChoice as RobertaForMultipleChoice,
    RobertaForMultipleChoice as CamembertForMultipleChoice,
    RobertaForMultipleChoice as Data2VecTextForMultipleChoice,
    RobertaForMultipleChoice as XLMRobertaForMultipleChoice,
    RobertaForQuestionAnswering as RobertaForQuestionAnswering,
    RobertaForQuestionAnswering as CamembertForQuestionAnswering,
    RobertaForQuestionAnswering as Data2VecTextForQuestionAnswering,
    RobertaForQuestionAnswering as XLMRobertaForQuestionAnswering,
    RobertaForSequenceClassification as RobertaForSequenceClassification,
    RobertaForSequenceClassification as CamembertForSequenceClassification,
    RobertaForSequenceClassification as Data2VecTextForSequenceClassification,
    RobertaForSequenceClassification as XLMRobertaForSequenceClassification,
    RobertaForTokenClassification as RobertaForTokenClassification,
    RobertaForTokenClassification as CamembertForTokenClassification,
    RobertaForTokenClassification as Data2VecTextForTokenClassification,
    RobertaForTokenClassification as XLMRobertaForTokenClassification,
    RobertaModel as RobertaModel,
    RobertaModel as CamembertModel,
    RobertaModel as Data2VecTextModel,
    RobertaModel as XLMRobertaModel,
)
from transept.models.roberta_prelayernorm import (
    RobertaPreLayerNormConfig as RobertaPreLayerNormConfig,
    RobertaPreLayerNormForCausalLM as RobertaPreLayerNormForCausalLM,
    RobertaPreLayerNormForMaskedLM as RobertaPreLayerNormForMaskedLM,
    RobertaPreLayerNormForMultipleChoice as RobertaPreLayerNormForMultipleChoice,
    RobertaPreLayerNormForQuestionAnswering as RobertaPreLayerNormForQuestionAnswering,
    RobertaPreLayerNormForSequenceClassification as RobertaPreLayerNormForSequenceClassification,
    RobertaPreLayerNormForTokenClassification as RobertaPreLayerNormForTokenClassification,
    RobertaPreLayerNormModel as RobertaPreLayerNormModel,
)
from transept.models.roformer import (
    RoFormerConfig as RoFormerConfig,
    RoFormerForCausalLM as RoFormerForCausalLM,
    RoFormerForMaskedLM as RoFormerForMaskedLM,
    RoFormerForMultipleChoice as RoFormerForMultipleChoice,
    RoFormerForQuestionAnswering as RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification as RoFormerForSequenceClassification,
    RoFormerForTokenClassification as RoFormerForTokenClassification,
    RoFormerModel as RoFormerModel,
)
from transept.models.rwkv import (
    RwkvConfig as RwkvConfig,
    RwkvForCausalLM as RwkvForCausalLM,
    RwkvModel as RwkvModel,
)
from transept.models.seed_oss import (
    SeedOssConfig as SeedOssConfig,
    SeedOssForCausalLM as SeedOssForCausalLM,
    SeedOssForQuestionAnswering as SeedOssForQuestionAnswering,
    SeedOssForSequenceClassification as SeedOssForSequenceClassification,
    SeedOssForTokenClassification as SeedOssForTokenClassification,
    SeedOssModel as SeedOssModel,
)
from transept.models.segformer import (
    SegformerConfig as SegformerConfig,
    SegformerForImageClassification as SegformerForImageClassification,
    SegformerForSemanticSegmentation as SegformerForSemanticSegmentation,
    SegformerModel as SegformerModel,
)
from transept.models.siglip import (
    SiglipConfig as SiglipConfig,
    SiglipForImageClassification as SiglipForImageClassification,
    SiglipModel as SiglipModel,
    SiglipTextConfig as SiglipTextConfig,
    SiglipTextModel as SiglipTextModel,
    SiglipVisionConfig as SiglipVisionConfig,
    SiglipVisionModel as SiglipVisionModel,
)
from transept.models.smollm3 import (
    SmolLM3Config as SmolLM3Config,
    SmolLM3ForCausalLM as SmolLM3ForCausalLM,
    SmolLM3ForQuestionAnswering as SmolLM3ForQuestionAnswering,
    SmolLM3ForSequenceClassification as SmolLM3ForSequenceClassification,
    SmolLM3ForTokenClassification as SmolLM3ForTokenClassification,
    SmolLM3Model as SmolLM3Model,
)
from transept.models.speech_encoder_decoder import (
    SpeechEncoderDecoderConfig as SpeechEncoderDecoderConfig,
    SpeechEncoderDecoderModel as SpeechEncoderDecoderModel,
)
from transept.models.splinter import (
    SplinterConfig as SplinterConfig,
    SplinterForPreTraining as SplinterForPreTraining,
    SplinterForQuestionAnswering as SplinterForQuestionAnswering,
    SplinterModel as SplinterModel,
)
from transept.models.squeezebert import (
    SqueezeBertConfig as SqueezeBertConfig,
    SqueezeBertForMaskedLM as SqueezeBertForMaskedLM,
    SqueezeBertForMultipleChoice as SqueezeBertForMultipleChoice,
    SqueezeBertForQuestionAnswering as SqueezeBertForQuestionAnswering,
    SqueezeBertForSequenceClassification as SqueezeBertForSequenceClassification,
    SqueezeBertForTokenClassification as SqueezeBertForTokenClassification,
    SqueezeBertModel as SqueezeBertModel,
)
from transept.models.stablelm import (
    StableLmConfig as StableLmConfig,
    StableLmForCausalLM as StableLmForCausalLM,
    StableLmForSequenceClassification as StableLmForSequenceClassification,
    StableLmForTokenClassification as StableLmForTokenClassification,
    StableLmModel as StableLmModel,
)
from transept.models.starcoder2 import (
    Starcoder2Config as Starcoder2Config,
    Starcoder2ForCausalLM as Starcoder2ForCausalLM,
    Starcoder2ForSequenceClassification as Starcoder2ForSequenceClassification,
    Starcoder2ForTokenClassification as Starcoder2ForTokenClassification,
    Starcoder2Model as Starcoder2Model,
)
from transept.models.swin import (
    SwinBackbone as SwinBackbone,
    SwinConfig as SwinConfig,
    SwinForImageClassification as SwinForImageClassification,
    SwinForMaskedImageModeling as SwinForMaskedImageModeling,
    SwinModel as SwinModel,
)
from transept.models.switch_transformers import (
    SwitchTransformersConfig as SwitchTransformersConfig,
    SwitchTransformersEncoderModel as SwitchTransformersEncoderModel,
    SwitchTransformersForConditionalGeneration as SwitchTransformersForConditionalGeneration,
    SwitchTransformersModel as SwitchTransformersModel,
)
from transept.models.t5 import (
    T5Config as T5Config,
    T5Config as MT5Config,
    T5EncoderModel as T5EncoderModel,
    T5EncoderModel as MT5EncoderModel,
    T5ForConditionalGeneration as T5ForConditionalGeneration,
    T5ForConditionalGeneration as MT5ForConditionalGeneration,
    T5ForQuestionAnswering as T5ForQuestionAnswering,
    T5ForQuestionAnswering as MT5ForQuestionAnswering,
    T5ForSequenceClassification as T5ForSequenceClassification,
    T5ForSequenceClassification as MT5ForSequenceClassification,
    T5ForTokenClassification as T5ForTokenClassification,
    T5ForTokenClassification as MT5ForTokenClassification,
    T5Model as T5Model,
    T5Model as MT5Model,
)
from transept.models.t5gemma import (
    T5GemmaConfig as T5GemmaConfig,
    T5GemmaEncoderModel as T5GemmaEncoderModel,
    T5GemmaForConditionalGeneration as T5GemmaForConditionalGeneration,
    T5GemmaForSequenceClassification as T5GemmaForSequenceClassification,
    T5GemmaForTokenClassification as T5GemmaForTokenClassification,
    T5GemmaModel as T5GemmaModel,
    T5GemmaModuleConfig as T5GemmaModuleConfig,
)
from transept.models.tapas import (
    TapasConfig as TapasConfig,
    TapasForMaskedLM as TapasForMaskedLM,
    TapasForQuestionAnswering as TapasForQuestionAnswering,
    TapasForSequenceClassification as TapasForSequenceClassification,
    TapasModel as TapasModel,
)
from transept.models.timm_backbone import (
    TimmBackbone as TimmBackbone,
    TimmBackboneConfig as TimmBackboneConfig,
)
from transept.models.trocr import (
    TrOCRConfig as TrOCRConfig,
    TrOCRForCausalLM as TrOCRForCausalLM,
)
from transept.models.umt5 import (
    UMT5Config as UMT5Config,
    UMT5EncoderModel as UMT5EncoderModel,
    UMT5ForConditionalGeneration as UMT5ForConditionalGeneration,
    UMT5ForQuestionAnswering as UMT5ForQuestionAnswering,
    UMT5ForSequenceClassification as UMT5ForSequenceClassification,
    UMT5ForTokenClassification as UMT5ForTokenClassification,
    UMT5Model as UMT5Model,
)
from transept.models.vision_encoder_decoder import (
    VisionEncoderDecoderConfig as VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel as VisionEncoderDecoderModel,
)
from transept.models.vit import (
    ViTBackbone as ViTBackbone,
    ViTConfig as ViTConfig,
    ViTForImageClassification as ViTForImageClassification,
    ViTForMaskedImageModeling as ViTForMaskedImageModeling,
    ViTModel as ViTModel,
)
from transept.models.wav2vec2 import (
    Wav2Vec2Config as Wav2Vec2Config,
    Wav2Vec2ForAudioFrameClassification as Wav2Vec2ForAudioFrameClassification,
    Wav2Vec2ForCTC as Wav2Vec2ForCTC,
    Wav2Vec2ForPreTraining as Wav2Vec2ForPreTraining,
    Wav2Vec2ForSequenceClassification as Wav2Vec2ForSequenceClassification,
    Wav2Vec2ForXVector as Wav2Vec2ForXVector,
    Wav2Vec2Model as Wav2Vec2Model,
)
from transept.models.wavlm import (
    WavLMConfig as WavLMConfig,
    WavLMForAudioFrameClassification as WavLMForAudioFrameClassification,
    WavLMForCTC as WavLMForCTC,
    WavLMForSequenceClassification as WavLMForSequenceClassification,
    WavLMForXVector as WavLMForXVector,
    WavLMModel as WavLMModel,
)
from transept.models.whisper import (
    WhisperConfig as WhisperConfig,
    WhisperForAudioClassification as WhisperForAudioClassification,
    WhisperForCausalLM as WhisperForCausalLM,
    WhisperForConditionalGeneration as WhisperForConditionalGeneration,
    WhisperModel as WhisperModel,
)
from transept.models.xglm import (
    XGLMConfig as XGLMConfig,
    XGLMForCausalLM as XGLMForCausalLM,
    XGLMModel as XGLMModel,
)
from transept.models.xlm import (
    XLMConfig as XLMConfig,
    XLMForMultipleChoice as XLMForMultipleChoice,
    XLMForQuestionAnswering as XLMForQuestionAnswering,
    XLMForQuestionAnsweringSimple as XLMForQuestionAnsweringSimple,
    XLMForSequenceClassification as XLMForSequenceClassification,
    XLMForTokenClassification as XLMForTokenClassification,
    XLMModel as XLMModel,
    XLMWithLMHeadModel as XLMWithLMHeadModel,
)
from transept.models.xlm_roberta_xl import (
    XLMRobertaXLConfig as XLMRobertaXLConfig,
    XLMRobertaXLForCausalLM as XLMRobertaXLForCausalLM,
    XLMRobertaXLForMaskedLM as XLMRobertaXLForMaskedLM,
    XLMRobertaXLForMultipleChoice as XLMRobertaXLForMultipleChoice,
    XLMRobertaXLForQuestionAnswering as XLMRobertaXLForQuestionAnswering,
    XLMRobertaXLForSequenceClassification as XLMRobertaXLForSequenceClassification,
    XLMRobertaXLForTokenClassification as XLMRobertaXLForTokenClassification,
    XLMRobertaXLModel as XLMRobertaXLModel,
)
from transept.models.xlnet import (
    XLNetConfig as XLNetConfig,
    XLNetForMultipleChoice as XLNetForMultipleChoice,
    XLNetForQuestionAnswering as XLNetForQuestionAnswering,
    XLNetForQuestionAnsweringSimple as XLNetForQuestionAnsweringSimple,
    XLNetForSequenceClassification as XLNetForSequenceClassification,
    XLNetForTokenClassification as XLNetForTokenClassification,
    XLNetLMHeadModel as XLNetLMHeadModel,
    XLNetModel as XLNetModel,
)
from transept.models.xmod import (
    XmodConfig as XmodConfig,
    XmodForCausalLM as XmodForCausalLM,
    XmodForMaskedLM as XmodForMaskedLM,
    XmodForMultipleChoice as XmodForMultipleChoice,
    XmodForQuestionAnswering as XmodForQuestionAnswering,
    XmodForSequenceClassification as XmodForSequenceClassification,
    XmodForTokenClassification as XmodForTokenClassification,
    XmodModel as XmodModel,
)
from transept.models.zamba2 import (
    Zamba2Config as Zamba2Config,
    Zamba2ForCausalLM as Zamba2ForCausalLM,
    Zamba2ForSequenceClassification as Zamba2ForSequenceClassification,
    Zamba2Model as Zamba2Model,
)
from transept.objectives.clustering import KMeans as KMeans
from transept.objectives.terms import LossTerm as LossTerm
from transept.outputs import (
    AudioOutput as AudioOutput,
    BackboneOutput as BackboneOutput,
    BeamQuestionAnsweringOutput as BeamQuestionAnsweringOutput,
    ContrastiveOutput as ContrastiveOutput,
    DepthOutput as DepthOutput,
    DetectionModelOutput as DetectionModelOutput,
    DetectionOutput as DetectionOutput,
    DistilledOutput as DistilledOutput,
    DoubleHeadsOutput as DoubleHeadsOutput,
    FeatureMapOutput as FeatureMapOutput,
    GridLogitsOutput as GridLogitsOutput,
    GridOutput as GridOutput,
    GridReconstructionOutput as GridReconstructionOutput,
    HashedLogitsOutput as HashedLogitsOutput,
    HashedOutput as HashedOutput,
    LogitsOutput as LogitsOutput,
    MemoryLogitsOutput as MemoryLogitsOutput,
    MemoryOutput as MemoryOutput,
    MemoryQuestionAnsweringOutput as MemoryQuestionAnsweringOutput,
    ModelOutput as ModelOutput,
    PictureTextLogitsOutput as PictureTextLogitsOutput,
    PictureTextOutput as PictureTextOutput,
    PreTrainingOutput as PreTrainingOutput,
    QuestionAnsweringOutput as QuestionAnsweringOutput,
    ReconstructionOutput as ReconstructionOutput,
    RecurrentLogitsOutput as RecurrentLogitsOutput,
    RecurrentOutput as RecurrentOutput,
    Seq2SeqLogitsOutput as Seq2SeqLogitsOutput,
    Seq2SeqOutput as Seq2SeqOutput,
    Seq2SeqQuestionAnsweringOutput as Seq2SeqQuestionAnsweringOutput,
    SparseLogitsOutput as SparseLogitsOutput,
    SparseOutput as SparseOutput,
    XVectorOutput as XVectorOutput,
)
from transept.parallel.mesh import DistributedConfig as DistributedConfig
from transept.pipelines import pipeline as pipeline
from transept.pipelines.draw import draw as draw
from transept.pipelines.registry import PIPELINE_REGISTRY as PIPELINE_REGISTRY
from transept.pipelines.steps import Pipeline as Pipeline
from transept.pipelines.tasks.automatic_speech_recognition import (
    AutomaticSpeechRecognitionPipeline as AutomaticSpeechRecognitionPipeline,
)
from transept.pipelines.tasks.classification import (
    AudioClassificationPipeline as AudioClassificationPipeline,
    ImageClassificationPipeline as ImageClassificationPipeline,
    TextClassificationPipeline as TextClassificationPipeline,
    ZeroShotClassificationPipeline as ZeroShotClassificationPipeline,
)
from transept.pipelines.tasks.describe import (
    ImageToTextPipeline as ImageToTextPipeline,
    VisualQuestionAnsweringPipeline as VisualQuestionAnsweringPipeline,
)
from transept.pipelines.tasks.document import DocumentQuestionAnsweringPipeline as DocumentQuestionAnsweringPipeline
from transept.pipelines.tasks.dual import ZeroShotImageClassificationPipeline as ZeroShotImageClassificationPipeline
from transept.pipelines.tasks.embedding import (
    AudioEmbeddingPipeline as AudioEmbeddingPipeline,
    ImageEmbeddingPipeline as ImageEmbeddingPipeline,
)
from transept.pipelines.tasks.generation import (
    SummarizationPipeline as SummarizationPipeline,
    Text2TextGenerationPipeline as Text2TextGenerationPipeline,
    TextGenerationPipeline as TextGenerationPipeline,
    TranslationPipeline as TranslationPipeline,
)
from transept.pipelines.tasks.image_text import ImageTextToTextPipeline as ImageTextToTextPipeline
from transept.pipelines.tasks.question_answering import QuestionAnsweringPipeline as QuestionAnsweringPipeline
from transept.pipelines.tasks.retrieval import (
    TextEmbeddingPipeline as TextEmbeddingPipeline,
    TextRankingPipeline as TextRankingPipeline,
    TextSimilarityPipeline as TextSimilarityPipeline,
)
from transept.pipelines.tasks.table import TableQuestionAnsweringPipeline as TableQuestionAnsweringPipeline
from transept.pipelines.tasks.tokens import (
    FeatureExtractionPipeline as FeatureExtractionPipeline,
    FillMaskPipeline as FillMaskPipeline,
    ImageFeatureExtractionPipeline as ImageFeatureExtractionPipeline,
    TokenClassificationPipeline as TokenClassificationPipeline,
)
from transept.pipelines.tasks.vision import (
    DepthEstimationPipeline as DepthEstimationPipeline,
    ImageSegmentationPipeline as ImageSegmentationPipeline,
    ObjectDetectionPipeline as ObjectDetectionPipeline,
)
from transept.preprocess.audio.audio_spectrogram_transformer import ASTFeatureExtractor as ASTFeatureExtractor
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer as Wav2Vec2CTCTokenizer
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor as Wav2Vec2FeatureExtractor
from transept.preprocess.audio.whisper import WhisperFeatureExtractor as WhisperFeatureExtractor
from transept.preprocess.audio.whisper_tokenizer import (
    WhisperTokenizer as WhisperTokenizer,
    WhisperTokenizerFast as WhisperTokenizerFast,
)
from transept.preprocess.auto import (
    AutoFeatureExtractor as AutoFeatureExtractor,
    AutoImageProcessor as AutoImageProcessor,
    AutoProcessor as AutoProcessor,
    AutoVideoProcessor as AutoVideoProcessor,
)
from transept.preprocess.features import BatchFeature as BatchFeature
from transept.preprocess.image.beit import (
    BeitImageProcessor as BeitImageProcessor,
    BeitImageProcessorFast as BeitImageProcessorFast,
)
from transept.preprocess.image.blip import (
    BlipImageProcessor as BlipImageProcessor,
    BlipImageProcessorFast as BlipImageProcessorFast,
)
from transept.preprocess.image.clip import (
    BitImageProcessor as BitImageProcessor,
    BitImageProcessorFast as BitImageProcessorFast,
    CLIPImageProcessor as CLIPImageProcessor,
    CLIPImageProcessorFast as CLIPImageProcessorFast,
)
from transept.preprocess.image.convnext import (
    ConvNextImageProcessor as ConvNextImageProcessor,
    ConvNextImageProcessorFast as ConvNextImageProcessorFast,
)
from transept.preprocess.image.detr import (
    DetrImageProcessor as DetrImageProcessor,
    DetrImageProcessorFast as DetrImageProcessorFast,
)
from transept.preprocess.image.dpt import (
    DPTImageProcessor as DPTImageProcessor,
    DPTImageProcessorFast as DPTImageProcessorFast,
)
from transept.preprocess.image.layoutlmv3 import (
    LayoutLMv3ImageProcessor as LayoutLMv3ImageProcessor,
    LayoutLMv3ImageProcessorFast as LayoutLMv3ImageProcessorFast,
)
from transept.preprocess.image.llava import (
    LlavaImageProcessor as LlavaImageProcessor,
    LlavaImageProcessorFast as LlavaImageProcessorFast,
)
from transept.preprocess.image.qwen2_vl import (
    Qwen2VLImageProcessor as Qwen2VLImageProcessor,
    Qwen2VLImageProcessorFast as Qwen2VLImageProcessorFast,
    Qwen2VLVideoProcessor as Qwen2VLVideoProcessor,
)
from transept.preprocess.image.segformer import (
    SegformerImageProcessor as SegformerImageProcessor,
    SegformerImageProcessorFast as SegformerImageProcessorFast,
)
from transept.preprocess.image.siglip import (
    SiglipImageProcessor as SiglipImageProcessor,
    SiglipImageProcessorFast as SiglipImageProcessorFast,
)
from transept.preprocess.image.vit import (
    DeiTImageProcessor as DeiTImageProcessor,
    DeiTImageProcessorFast as DeiTImageProcessorFast,
    ViTImageProcessor as ViTImageProcessor,
    ViTImageProcessorFast as ViTImageProcessorFast,
)
from transept.preprocess.processors.blip import BlipProcessor as BlipProcessor
from transept.preprocess.processors.clip import CLIPProcessor as CLIPProcessor
from transept.preprocess.processors.layoutlmv3 import LayoutLMv3Processor as LayoutLMv3Processor
from transept.preprocess.processors.llava import LlavaProcessor as LlavaProcessor
from transept.preprocess.processors.qwen2_vl import (
    Qwen2VLProcessor as Qwen2VLProcessor,
    Qwen2_5_VLProcessor as Qwen2_5_VLProcessor,
)
from transept.preprocess.processors.siglip import SiglipProcessor as SiglipProcessor
from transept.preprocess.processors.trocr import TrOCRProcessor as TrOCRProcessor
from transept.preprocess.processors.wav2vec2 import Wav2Vec2Processor as Wav2Vec2Processor
from transept.preprocess.processors.whisper import WhisperProcessor as WhisperProcessor
from transept.preprocess.text.answers import (
    ReasoningDelta as ReasoningDelta,
    TextDelta as TextDelta,
    ToolCall as ToolCall,
)
from transept.preprocess.text.auto import AutoTokenizer as AutoTokenizer
from transept.preprocess.text.classes import (
    AddedToken as AddedToken,
    BioGptTokenizer as BioGptTokenizer,
    BlenderbotSmallTokenizer as BlenderbotSmallTokenizer,
    CTRLTokenizer as CTRLTokenizer,
    CanineTokenizer as CanineTokenizer,
    FSMTTokenizer as FSMTTokenizer,
    FlaubertTokenizer as FlaubertTokenizer,
    M2M100Tokenizer as M2M100Tokenizer,
    MBart50Tokenizer as MBart50Tokenizer,
    MBart50TokenizerFast as MBart50TokenizerFast,
    MBartTokenizer as MBartTokenizer,
    MBartTokenizerFast as MBartTokenizerFast,
    MarianTokenizer as MarianTokenizer,
    NllbTokenizer as NllbTokenizer,
    NllbTokenizerFast as NllbTokenizerFast,
    PLBartTokenizer as PLBartTokenizer,
    PreTrainedTokenizer as PreTrainedTokenizer,
    PreTrainedTokenizerBase as PreTrainedTokenizerBase,
    PreTrainedTokenizerFast as PreTrainedTokenizerFast,
    PythonBackend as PythonBackend,
    RoFormerTokenizer as RoFormerTokenizer,
    RoFormerTokenizerFast as RoFormerTokenizerFast,
    TokenizersBackend as TokenizersBackend,
    XLMTokenizer as XLMTokenizer,
)
from transept.preprocess.text.classes.byte_pairs import (
    BartTokenizer as BartTokenizer,
    BartTokenizerFast as BartTokenizerFast,
    BlenderbotTokenizer as BlenderbotTokenizer,
    BlenderbotTokenizerFast as BlenderbotTokenizerFast,
    CLIPTokenizer as CLIPTokenizer,
    CLIPTokenizerFast as CLIPTokenizerFast,
    CodeGenTokenizer as CodeGenTokenizer,
    CodeGenTokenizerFast as CodeGenTokenizerFast,
    CohereTokenizer as CohereTokenizer,
    CohereTokenizerFast as CohereTokenizerFast,
    DebertaTokenizer as DebertaTokenizer,
    DebertaTokenizerFast as DebertaTokenizerFast,
    GPT2Tokenizer as GPT2Tokenizer,
    GPT2TokenizerFast as GPT2TokenizerFast,
    GPTNeoXTokenizer as GPTNeoXTokenizer,
    GPTNeoXTokenizerFast as GPTNeoXTokenizerFast,
    LayoutLMv3Tokenizer as LayoutLMv3Tokenizer,
    LayoutLMv3TokenizerFast as LayoutLMv3TokenizerFast,
    MvpTokenizer as MvpTokenizer,
    MvpTokenizerFast as MvpTokenizerFast,
    OpenAIGPTTokenizer as OpenAIGPTTokenizer,
    OpenAIGPTTokenizerFast as OpenAIGPTTokenizerFast,
    Qwen2Tokenizer as Qwen2Tokenizer,
    Qwen2TokenizerFast as Qwen2TokenizerFast,
    Qwen3_5Tokenizer as Qwen3_5Tokenizer,
    Qwen3_5TokenizerFast as Qwen3_5TokenizerFast,
    RobertaTokenizer as RobertaTokenizer,
    RobertaTokenizerFast as RobertaTokenizerFast,
)
from transept.preprocess.text.classes.entities import LukeTokenizer as LukeTokenizer
from transept.preprocess.text.classes.passages import (
    DPRReaderTokenizer as DPRReaderTokenizer,
    DPRReaderTokenizerFast as DPRReaderTokenizerFast,
    DPRSpanPrediction as DPRSpanPrediction,
)
from transept.preprocess.text.classes.sentencepiece import (
    AlbertTokenizer as AlbertTokenizer,
    AlbertTokenizerFast as AlbertTokenizerFast,
    BarthezTokenizer as BarthezTokenizer,
    BarthezTokenizerFast as BarthezTokenizerFast,
    BertGenerationTokenizer as BertGenerationTokenizer,
    BigBirdTokenizer as BigBirdTokenizer,
    BigBirdTokenizerFast as BigBirdTokenizerFast,
    CamembertTokenizer as CamembertTokenizer,
    CamembertTokenizerFast as CamembertTokenizerFast,
    DebertaV2Tokenizer as DebertaV2Tokenizer,
    DebertaV2TokenizerFast as DebertaV2TokenizerFast,
    FNetTokenizer as FNetTokenizer,
    FNetTokenizerFast as FNetTokenizerFast,
    GemmaTokenizer as GemmaTokenizer,
    GemmaTokenizerFast as GemmaTokenizerFast,
    LlamaTokenizer as LlamaTokenizer,
    LlamaTokenizerFast as LlamaTokenizerFast,
    PegasusTokenizer as PegasusTokenizer,
    PegasusTokenizerFast as PegasusTokenizerFast,
    ReformerTokenizer as ReformerTokenizer,
    ReformerTokenizerFast as ReformerTokenizerFast,
    RemBertTokenizer as RemBertTokenizer,
    RemBertTokenizerFast as RemBertTokenizerFast,
    SiglipTokenizer as SiglipTokenizer,
    SiglipTokenizerFast as SiglipTokenizerFast,
    T5Tokenizer as T5Tokenizer,
    T5TokenizerFast as T5TokenizerFast,
    XGLMTokenizer as XGLMTokenizer,
    XGLMTokenizerFast as XGLMTokenizerFast,
    XLMRobertaTokenizer as XLMRobertaTokenizer,
    XLMRobertaTokenizerFast as XLMRobertaTokenizerFast,
    XLNetTokenizer as XLNetTokenizer,
    XLNetTokenizerFast as XLNetTokenizerFast,
)
from transept.preprocess.text.classes.tables import (
    Place as Place,
    TapasTokenizer as TapasTokenizer,
    TapasTokenizerFast as TapasTokenizerFast,
)
from transept.preprocess.text.classes.wordpiece import (
    BertTokenizer as BertTokenizer,
    BertTokenizerFast as BertTokenizerFast,
    DPRContextEncoderTokenizer as DPRContextEncoderTokenizer,
    DPRContextEncoderTokenizerFast as DPRContextEncoderTokenizerFast,
    DPRQuestionEncoderTokenizer as DPRQuestionEncoderTokenizer,
    DPRQuestionEncoderTokenizerFast as DPRQuestionEncoderTokenizerFast,
    DistilBertTokenizer as DistilBertTokenizer,
    DistilBertTokenizerFast as DistilBertTokenizerFast,
    ElectraTokenizer as ElectraTokenizer,
    ElectraTokenizerFast as ElectraTokenizerFast,
    EsmTokenizer as EsmTokenizer,
    EsmTokenizerFast as EsmTokenizerFast,
    FunnelTokenizer as FunnelTokenizer,
    FunnelTokenizerFast as FunnelTokenizerFast,
    MPNetTokenizer as MPNetTokenizer,
    MPNetTokenizerFast as MPNetTokenizerFast,
    MobileBertTokenizer as MobileBertTokenizer,
    MobileBertTokenizerFast as MobileBertTokenizerFast,
    ProphetNetTokenizer as ProphetNetTokenizer,
    SplinterTokenizer as SplinterTokenizer,
    SplinterTokenizerFast as SplinterTokenizerFast,
)
from transept.preprocess.text.encoding import BatchEncoding as BatchEncoding
from transept.preprocess.text.tools import get_json_schema as get_json_schema
from transept.tables.files import load_dataset_file as load_dataset_file
from transept.training.arguments.training import (
    Seq2SeqTrainingArguments as Seq2SeqTrainingArguments,
    TrainingArguments as TrainingArguments,
)
from transept.training.callbacks.base import (
    CallbackHandler as CallbackHandler,
    DefaultFlowCallback as DefaultFlowCallback,
    EarlyStoppingCallback as EarlyStoppingCallback,
    TrainerCallback as TrainerCallback,
)
from transept.training.callbacks.progress import (
    PrinterCallback as PrinterCallback,
    ProgressCallback as ProgressCallback,
)
from transept.training.checkpoint.directory import (
    find_last_checkpoint as find_last_checkpoint,
    get_last_checkpoint as get_last_checkpoint,
)
from transept.training.collate.language import (
    DataCollatorForLanguageModeling as DataCollatorForLanguageModeling,
    DataCollatorForNextSentencePrediction as DataCollatorForNextSentencePrediction,
    DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
    DataCollatorForWholeWordMask as DataCollatorForWholeWordMask,
)
from transept.training.collate.media import (
    DataCollatorForAudio as DataCollatorForAudio,
    DataCollatorForObjectDetection as DataCollatorForObjectDetection,
    DataCollatorForPatchMasking as DataCollatorForPatchMasking,
    DataCollatorForWav2Vec2Pretraining as DataCollatorForWav2Vec2Pretraining,
)
from transept.training.collate.padding import (
    DataCollatorForMultipleChoice as DataCollatorForMultipleChoice,
    DataCollatorForPairs as DataCollatorForPairs,
    DataCollatorForSeq2Seq as DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification as DataCollatorForTokenClassification,
    DataCollatorWithFlattening as DataCollatorWithFlattening,
    DataCollatorWithPadding as DataCollatorWithPadding,
    DefaultDataCollator as DefaultDataCollator,
    PaddingCollator as PaddingCollator,
    default_data_collator as default_data_collator,
)
from transept.training.collate.spans import (
    DataCollatorForDenoising as DataCollatorForDenoising,
    DataCollatorForSpanCorruption as DataCollatorForSpanCorruption,
)
from transept.training.objective import Objective as Objective
from transept.training.optim.adafactor import (
    Adafactor as Adafactor,
    AdafactorSchedule as AdafactorSchedule,
    get_adafactor_schedule as get_adafactor_schedule,
)
from transept.training.optim.greedy import GreedyLR as GreedyLR
from transept.training.optim.optimizers import (
    OptimizerNames as OptimizerNames,
    WeightAverage as WeightAverage,
)
from transept.training.optim.schedules import (
    SchedulerType as SchedulerType,
    get_constant_schedule as get_constant_schedule,
    get_constant_schedule_with_warmup as get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    get_greedy_schedule as get_greedy_schedule,
    get_inverse_sqrt_schedule as get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup as get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule,
    get_scheduler as get_scheduler,
    get_wsd_schedule as get_wsd_schedule,
)
from transept.training.state import (
    BestRun as BestRun,
    EvalLoopOutput as EvalLoopOutput,
    EvalPrediction as EvalPrediction,
    HubStrategy as HubStrategy,
    IntervalStrategy as IntervalStrategy,
    ParallelMode as ParallelMode,
    PredictionOutput as PredictionOutput,
    SaveStrategy as SaveStrategy,
    TrainOutput as TrainOutput,
    TrainerControl as TrainerControl,
    TrainerState as TrainerState,
)
from transept.training.trainer import Trainer as Trainer
from transept.training.trainers.discriminators import (
    GANTrainer as GANTrainer,
    ReplacedTokensTrainer as ReplacedTokensTrainer,
)
from transept.training.trainers.distillation import DistillationTrainer as DistillationTrainer
from transept.training.trainers.objective import ObjectiveTrainer as ObjectiveTrainer
from transept.training.trainers.pairs import (
    DPOTrainer as DPOTrainer,
    DataCollatorForPreference as DataCollatorForPreference,
    SentenceTrainer as SentenceTrainer,
)
from transept.training.trainers.semi_supervised import (
    ConsistencyTrainer as ConsistencyTrainer,
    SelfTrainer as SelfTrainer,
)
from transept.training.trainers.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer

__version__: str
