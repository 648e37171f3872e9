"""Written by `python -m tests.public`; both the runtime index of public names and what editors see."""

from transept.auto import (
    AutoConfig as AutoConfig,
    AutoModel as AutoModel,
    AutoModelForAudioClassification as AutoModelForAudioClassification,
    AutoModelForAudioFrameClassification as AutoModelForAudioFrameClassification,
    AutoModelForAudioXVector as AutoModelForAudioXVector,
    AutoModelForCTC as AutoModelForCTC,
    AutoModelForCausalLM as AutoModelForCausalLM,
    AutoModelForImageClassification as AutoModelForImageClassification,
    AutoModelForMaskedImageModeling as AutoModelForMaskedImageModeling,
    AutoModelForMaskedLM as AutoModelForMaskedLM,
    AutoModelForMultipleChoice as AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction as AutoModelForNextSentencePrediction,
    AutoModelForPreTraining as AutoModelForPreTraining,
    AutoModelForQuestionAnswering as AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
    AutoModelForTokenClassification as AutoModelForTokenClassification,
    config_class as config_class,
    read_config as read_config,
)
from transept.backbone import (
    Backbone as Backbone,
    Model as Model,
    TaskModel as TaskModel,
)
from transept.config import (
    Config as Config,
    RotaryConfig as RotaryConfig,
)
from transept.errors import (
    CheckpointError as CheckpointError,
    ConfigError as ConfigError,
    FileError as FileError,
    FormatError as FormatError,
    InputError as InputError,
    InputTypeError as InputTypeError,
    MissingExtraError as MissingExtraError,
    TranseptError as TranseptError,
    TranseptWarning as TranseptWarning,
    UnsupportedError as UnsupportedError,
    nearest as nearest,
)
from transept.layers.cache import (
    Cache as Cache,
    DynamicCache as DynamicCache,
)
from transept.layers.mlp import apply_chunking_to_forward as apply_chunking_to_forward
from transept.modality.signal import (
    AudioBackbone as AudioBackbone,
    AudioInputs as AudioInputs,
    ImageBackbone as ImageBackbone,
    ImageInputs as ImageInputs,
    RecordOptions as RecordOptions,
    Recorded as Recorded,
    check_finite as check_finite,
)
from transept.modality.text import (
    Options as Options,
    TextBackbone as TextBackbone,
    TextInputs as TextInputs,
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
from transept.models.distilbert import (
    DistilBertConfig as DistilBertConfig,
    DistilBertForMaskedLM as DistilBertForMaskedLM,
    DistilBertForMultipleChoice as DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering as DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification as DistilBertForSequenceClassification,
    DistilBertForTokenClassification as DistilBertForTokenClassification,
    DistilBertModel as DistilBertModel,
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
from transept.models.gpt2 import (
    GPT2Config as GPT2Config,
    GPT2DoubleHeadsModel as GPT2DoubleHeadsModel,
    GPT2ForQuestionAnswering as GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification as GPT2ForSequenceClassification,
    GPT2ForTokenClassification as GPT2ForTokenClassification,
    GPT2LMHeadModel as GPT2LMHeadModel,
    GPT2Model as GPT2Model,
)
from transept.models.llama import (
    LlamaConfig as LlamaConfig,
    LlamaForCausalLM as LlamaForCausalLM,
    LlamaForQuestionAnswering as LlamaForQuestionAnswering,
    LlamaForSequenceClassification as LlamaForSequenceClassification,
    LlamaForTokenClassification as LlamaForTokenClassification,
    LlamaModel as LlamaModel,
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
from transept.models.mpnet import (
    MPNetConfig as MPNetConfig,
    MPNetForMaskedLM as MPNetForMaskedLM,
    MPNetForMultipleChoice as MPNetForMultipleChoice,
    MPNetForQuestionAnswering as MPNetForQuestionAnswering,
    MPNetForSequenceClassification as MPNetForSequenceClassification,
    MPNetForTokenClassification as MPNetForTokenClassification,
    MPNetModel as MPNetModel,
)
from transept.models.roberta import (
    RobertaConfig as RobertaConfig,
    RobertaForCausalLM as RobertaForCausalLM,
    RobertaForMaskedLM as RobertaForMaskedLM,
    RobertaForMultipleChoice as RobertaForMultipleChoice,
    RobertaForQuestionAnswering as RobertaForQuestionAnswering,
    RobertaForSequenceClassification as RobertaForSequenceClassification,
    RobertaForTokenClassification as RobertaForTokenClassification,
    RobertaModel as RobertaModel,
)
from transept.models.vit import (
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
from transept.models.xlm_roberta import (
    XLMRobertaConfig as XLMRobertaConfig,
    XLMRobertaForCausalLM as XLMRobertaForCausalLM,
    XLMRobertaForMaskedLM as XLMRobertaForMaskedLM,
    XLMRobertaForMultipleChoice as XLMRobertaForMultipleChoice,
    XLMRobertaForQuestionAnswering as XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification as XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification as XLMRobertaForTokenClassification,
    XLMRobertaModel as XLMRobertaModel,
)
from transept.objectives.terms import LossTerm as LossTerm
from transept.outputs import (
    AudioOutput as AudioOutput,
    BackboneOutput as BackboneOutput,
    ContrastiveOutput as ContrastiveOutput,
    DoubleHeadsOutput as DoubleHeadsOutput,
    LogitsOutput as LogitsOutput,
    ModelOutput as ModelOutput,
    PreTrainingOutput as PreTrainingOutput,
    QuestionAnsweringOutput as QuestionAnsweringOutput,
    ReconstructionOutput as ReconstructionOutput,
    XVectorOutput as XVectorOutput,
)
from transept.pipelines import pipeline as pipeline
from transept.preprocess.audio.auto import AutoFeatureExtractor as AutoFeatureExtractor
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer as Wav2Vec2CTCTokenizer
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor as Wav2Vec2FeatureExtractor
from transept.preprocess.features import BatchFeature as BatchFeature
from transept.preprocess.image.auto import AutoImageProcessor as AutoImageProcessor
from transept.preprocess.image.vit import (
    ViTImageProcessor as ViTImageProcessor,
    ViTImageProcessorFast as ViTImageProcessorFast,
)
from transept.preprocess.processor import (
    AutoProcessor as AutoProcessor,
    Wav2Vec2Processor as Wav2Vec2Processor,
)
from transept.preprocess.text.auto import AutoTokenizer as AutoTokenizer
from transept.preprocess.text.classes import (
    AddedToken as AddedToken,
    AlbertTokenizer as AlbertTokenizer,
    AlbertTokenizerFast as AlbertTokenizerFast,
    BartTokenizer as BartTokenizer,
    BartTokenizerFast as BartTokenizerFast,
    BarthezTokenizer as BarthezTokenizer,
    BarthezTokenizerFast as BarthezTokenizerFast,
    BertTokenizer as BertTokenizer,
    BertTokenizerFast as BertTokenizerFast,
    CLIPTokenizer as CLIPTokenizer,
    CLIPTokenizerFast as CLIPTokenizerFast,
    CamembertTokenizer as CamembertTokenizer,
    CamembertTokenizerFast as CamembertTokenizerFast,
    DebertaV2Tokenizer as DebertaV2Tokenizer,
    DebertaV2TokenizerFast as DebertaV2TokenizerFast,
    DistilBertTokenizer as DistilBertTokenizer,
    DistilBertTokenizerFast as DistilBertTokenizerFast,
    ElectraTokenizer as ElectraTokenizer,
    ElectraTokenizerFast as ElectraTokenizerFast,
    GPT2Tokenizer as GPT2Tokenizer,
    GPT2TokenizerFast as GPT2TokenizerFast,
    GPTNeoXTokenizer as GPTNeoXTokenizer,
    GPTNeoXTokenizerFast as GPTNeoXTokenizerFast,
    LlamaTokenizer as LlamaTokenizer,
    LlamaTokenizerFast as LlamaTokenizerFast,
    MPNetTokenizer as MPNetTokenizer,
    MPNetTokenizerFast as MPNetTokenizerFast,
    PreTrainedTokenizer as PreTrainedTokenizer,
    PreTrainedTokenizerBase as PreTrainedTokenizerBase,
    PreTrainedTokenizerFast as PreTrainedTokenizerFast,
    Qwen2Tokenizer as Qwen2Tokenizer,
    Qwen2TokenizerFast as Qwen2TokenizerFast,
    RobertaTokenizer as RobertaTokenizer,
    RobertaTokenizerFast as RobertaTokenizerFast,
    T5Tokenizer as T5Tokenizer,
    T5TokenizerFast as T5TokenizerFast,
    TokenizersBackend as TokenizersBackend,
    XLMRobertaTokenizer as XLMRobertaTokenizer,
    XLMRobertaTokenizerFast as XLMRobertaTokenizerFast,
    XLNetTokenizer as XLNetTokenizer,
    XLNetTokenizerFast as XLNetTokenizerFast,
)
from transept.preprocess.text.encoding import BatchEncoding as BatchEncoding

__version__: str
